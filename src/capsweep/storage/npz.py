"""Opens .npz files whose arrays are as large as they say: a header may declare any size."""

import math
import os
import zipfile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

HIGHEST_RATIO = 1033  # no deflated byte becomes more than 1,032
LONGEST = 2**48  # of a dimension: numpy multiplies them without looking


def open_npz(file: IO[bytes]) -> "np.lib.npyio.NpzFile":
    """Open the arrays of an .npz, which are read one by one; pickled objects are refused.

    No array is larger than the bytes that are there, so that reading one takes no more memory than
    a whole file of this length may need. Raises ValueError where a header declares another size
    than its array has, and whatever zipfile and numpy raise for a damaged file.
    """
    import numpy as np

    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            _check_member(archive, member, length)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, length: int) -> None:
    """Compare what a member says of itself with what is there, before anything is reserved."""
    from numpy.lib import format as headers

    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed otherwise than numpy does")
    ratio = 1 if member.compress_type == zipfile.ZIP_STORED else HIGHEST_RATIO
    if member.compress_size > length or member.file_size > ratio * member.compress_size:
        raise ValueError(f"{member.filename} declares {member.file_size:,} bytes of {length:,}")
    with archive.open(member) as stream:
        readers = {(1, 0): headers.read_array_header_1_0, (2, 0): headers.read_array_header_2_0}
        version = headers.read_magic(stream)
        if version not in readers:
            raise ValueError(
                f"{member.filename} is of version {version}, which numpy rarely writes"
            )
        shape, _, dtype = readers[version](stream)
        stored = member.file_size - stream.tell()
    is_possible = all(0 <= side < LONGEST for side in shape)
    is_whole = dtype.hasobject or math.prod(shape) * dtype.itemsize == stored  # numpy refuses those
    if not (is_possible and is_whole):
        text = f"declares {str(shape)[:80]} numbers of {dtype.itemsize} bytes, and has {stored:,}"
        raise ValueError(f"{member.filename} {text}")

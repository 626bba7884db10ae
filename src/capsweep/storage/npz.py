"""Opens .npz files whose arrays are as large as they say: a header may declare any size."""

import math
import os
import zipfile
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

HIGHEST_RATIO = 1033  # no deflated byte becomes more than 1,032
RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: HIGHEST_RATIO}
LONGEST = 2**48  # of a dimension: numpy multiplies them without looking


class Header(NamedTuple):
    """What an array of a file says of itself."""

    shape: tuple[int, ...]
    dtype: "np.dtype"
    size: int  # bytes in memory


def open_npz(file: IO[bytes]) -> "np.lib.npyio.NpzFile":
    """Open the arrays of an .npz, which are read one by one; pickled objects are refused.

    Raises what `read_headers` raises.
    """
    import numpy as np

    read_headers(file)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def read_headers(file: IO[bytes]) -> dict[str, Header]:
    """Return the header of each array of an .npz, by name, before any array is reserved.

    No array is larger than the bytes that are there, so that reading one takes no more memory than
    a whole file of this length may need. Raises ValueError where a header declares another size
    than its array has, and whatever zipfile and numpy raise for a damaged file.
    """
    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        return {
            member.filename.removesuffix(".npy"): _read_header(archive, member, length)
            for member in archive.infolist()
        }


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, length: int) -> Header:
    from numpy.lib import format as headers

    if member.compress_type not in RATIOS:
        raise ValueError(f"{member.filename} is packed otherwise than numpy packs")
    most = RATIOS[member.compress_type] * member.compress_size
    if member.compress_size > length or member.file_size > most:
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
    return Header(shape, dtype, stored)

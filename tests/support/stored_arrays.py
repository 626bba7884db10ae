"""Arrays of files whose headers say something else than their bytes."""

import io
import zipfile
from pathlib import Path

import numpy as np


def declare_shape(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Write an .npz again, in which the header of one array declares another shape."""
    with zipfile.ZipFile(path) as archive:
        contents = {member: archive.read(member) for member in archive.namelist()}
    stored, header = io.BytesIO(contents[f"{name}.npy"]), io.BytesIO()
    np.lib.format.read_magic(stored)
    _, order, dtype = np.lib.format.read_array_header_1_0(stored)
    described = {"descr": dtype.str, "fortran_order": order, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    contents[f"{name}.npy"] = header.getvalue() + stored.read()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in contents.items():
            archive.writestr(member, content)

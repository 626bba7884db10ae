"""MATLAB files, decoded by scipy from bytes that were verified before.

Other bytes never reach it: on altered ones it can raise anything, and even crash the process.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from capsweep.errors import DataError


def variables(path: Path, data: bytes, names: Sequence[str]) -> dict[str, Any]:
    """The named variables in `data`, the bytes of `path`. Raises DataError naming the file."""
    try:
        found = loadmat(io.BytesIO(data), variable_names=list(names))
    except MemoryError:
        raise
    except NotImplementedError as error:  # scipy's word for MATLAB 7.3, which is HDF5
        raise DataError(
            f"{path}: of MATLAB 7.3, and the official file is of MATLAB 5; download it again"
        ) from error
    except Exception as error:  # a declared file that is none can make scipy raise anything
        raise DataError(f"{path}: not a MATLAB 5 file, or truncated ({error})") from error
    absent = [name for name in names if name not in found]
    if absent:
        raise DataError(f"{path}: has no variable {', '.join(absent)}")
    return {name: found[name] for name in names}


def array(path: Path, name: str, value: Any, shape: Sequence[int | None], kind: str) -> np.ndarray:
    """`value` as an array of this shape, None for any size, and of this kind of numbers.

    kind: of numpy's dtype.kind, several letters for several kinds. Raises DataError.
    """
    found = np.asarray(value)
    fits = len(found.shape) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(found.shape, shape, strict=True)
    )
    if not fits or found.dtype.kind not in kind or 0 in found.shape:
        wanted = ", ".join("N" if size is None else str(size) for size in shape)
        raise DataError(f"{path}: {name} is {found.dtype} {list(found.shape)}, not [{wanted}]")
    return found

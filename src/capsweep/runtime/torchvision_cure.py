"""Lets `import torchvision` succeed beside a CPU build of torch. Import this module before it.

PyPI's torchvision is built for CUDA: on a CPU torch its extension cannot load, the two operators it
would declare are missing, and importing torchvision (or torchmetrics, or pytorch_lightning, which
import it) raises `operator torchvision::nms does not exist`. Declaring their schemas is enough,
because nothing here calls them.
"""

import importlib.util
from pathlib import Path

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _extension_loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    libraries = list(Path(spec.origin).parent.glob("_C*.so"))
    try:
        for library in libraries:
            torch.ops.load_library(str(library))
    except (ImportError, OSError):
        return False
    return bool(libraries)


def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    return library


# The operators live as long as this object.
LIBRARY = None if _extension_loads() else _declare_operators()

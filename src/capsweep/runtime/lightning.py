"""The parts of Lightning that capsweep uses. Import them from here, and before torchvision.

PyPI's torchvision is built for CUDA. With a torch for CPUs, the extension of torchvision cannot be
loaded, so two operators of the extension are not declared. Then the import of torchvision fails:
`operator torchvision::nms does not exist`. The imports of torchmetrics and pytorch_lightning fail
too, because they import torchvision. This module declares the schemas of the two operators. The
schemas are enough, because capsweep never calls the operators.
"""

import gc

import torch

try:
    import torchvision as torchvision
except RuntimeError:
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # keeps the operators declared
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

# isort: split
from lightning_fabric.plugins.environments.lightning import (
    LightningEnvironment as LightningEnvironment,
)
from pytorch_lightning import Callback as Callback
from pytorch_lightning import LightningModule as LightningModule
from pytorch_lightning import Trainer as Trainer
from pytorch_lightning.callbacks import Checkpoint as Checkpoint
from pytorch_lightning.loggers import TensorBoardLogger as TensorBoardLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO as TorchCheckpointIO
from pytorch_lightning.utilities.seed import isolate_rng as isolate_rng

# About five thousand modules are loaded now. Without this line, the garbage collector would search
# their objects after each cell that a worker trains. Each search would take a third of a second.
gc.freeze()

"""The parts of Lightning that capsweep uses. Import them from here, and before torchvision.

PyPI's torchvision is built for CUDA. With a torch for CPUs, torchvision's extension cannot load, so
two operators of the extension are not declared. Then importing torchvision raises `operator
torchvision::nms does not exist`; torchmetrics and pytorch_lightning import torchvision. This module
declares the schemas of the two operators. That is enough, because capsweep never calls them.
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
from pytorch_lightning.plugins.io import TorchCheckpointIO as TorchCheckpointIO
from pytorch_lightning.utilities.seed import isolate_rng as isolate_rng
from pytorch_lightning.utilities.types import (
    OptimizerLRSchedulerConfig as OptimizerLRSchedulerConfig,
)

# About five thousand modules are loaded now. Without this line, the garbage collector would search
# them after each cell of a worker, which takes a third of a second.
gc.freeze()

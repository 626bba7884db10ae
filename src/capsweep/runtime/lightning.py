"""What is used of Lightning, imported where it can be. Import this module before torchvision too.

PyPI's torchvision is built for CUDA: on a CPU torch its extension cannot load, the two operators it
would declare are missing, and importing torchvision (or torchmetrics, or pytorch_lightning, which
import it) raises `operator torchvision::nms does not exist`. Declaring their schemas is enough,
because nothing here calls them.
"""

import gc

import torch

try:
    import torchvision as torchvision
except RuntimeError:
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # operators live as long as this
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

# There are five thousand modules now. To look for garbage in them takes a third of a second, which
# a worker would pay after each cell.
gc.freeze()

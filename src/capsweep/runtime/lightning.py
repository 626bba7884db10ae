"""What is used of Lightning, imported where it can be.

Lightning imports torchvision, which beside a CPU build of torch needs the cure first.
"""

import gc

from capsweep.runtime import torchvision_cure as torchvision_cure

# isort: split
from lightning_fabric.plugins.environments.lightning import (
    LightningEnvironment as LightningEnvironment,
)
from pytorch_lightning import Callback as Callback
from pytorch_lightning import LightningModule as LightningModule
from pytorch_lightning import Trainer as Trainer
from pytorch_lightning.callbacks import Checkpoint as Checkpoint
from pytorch_lightning.utilities.seed import isolate_rng as isolate_rng
from pytorch_lightning.utilities.types import (
    OptimizerLRSchedulerConfig as OptimizerLRSchedulerConfig,
)

# There are five thousand modules now. To look for garbage in them takes a third of a second, which
# a worker would pay after each cell.
gc.freeze()

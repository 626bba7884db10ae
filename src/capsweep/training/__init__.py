"""From one cell to its result: objective, Lightning module, callbacks, the cell's folder."""

from capsweep import torchvision_cure as torchvision_cure

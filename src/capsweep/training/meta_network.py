"""A network on the meta device: built and run without memory, to see how large it is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from capsweep.errors import ConfigError
from capsweep.training import build
from capsweep.training.size import Size


def labels_per_image(dataset: Mapping[str, Any]) -> int:
    """How many classes one image shows."""
    return dataset.get("labels_per_image", 1)


class WithReconstruction(nn.Module):
    """A network followed by its decoder, where it has one, once for each class that an image shows:
    all that an image passes through.
    """

    def __init__(self, network: nn.Module, dataset: Mapping[str, Any]) -> None:
        super().__init__()
        self.network, self.num_classes = network, dataset["num_classes"]
        self.labels = labels_per_image(dataset)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """The scores; the reconstructions are made, and dropped."""
        output = self.network(images_BCHW)
        decoder: Any = getattr(self.network, "decoder", None)
        if decoder is not None:
            for _ in range(self.labels):
                decoder(output.pose_BJD, images_BCHW.new_empty(len(images_BCHW), self.num_classes))
        return output.scores_BN


def by_reference(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same network, whose FLOPs do not depend on how its routing is implemented."""
    routing = config["routing"]
    if routing is None or routing["impl"] not in ("fast", "triton"):
        return config
    return {**config, "routing": {**routing, "impl": "reference"}}


def measure(config: Mapping[str, Any]) -> Size:
    """Build the network of a canonical configuration on the meta device, without memory, and push
    one image through it.

    Raises ConfigError naming the key of a target that may not be called, sizes that do not fit, or
    an optimiser that cannot be had as it is asked for.
    """
    build.check_targets(config)
    build.optimizer(config)
    dataset = config["dataset"]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = WithReconstruction(build.network(by_reference(config)), dataset)
        try:
            network(torch.empty(1, *dataset["image_shape"]))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"model={config['model']['name']}: {reason}") from error
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Size(parameters, counter.get_total_flops())

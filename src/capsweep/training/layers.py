"""A network layer by layer: shapes, parameters, FLOPs, votes, and the memory that training needs.

Nothing is computed. Shapes and FLOPs come from the meta device, as in `size`. What autograd saves
comes from fake tensors, which have no memory either, but, unlike those of the meta device, know
autocast: so a precision of bf16-mixed is counted as what it is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torchinfo
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from capsweep.data.batches import Batch
from capsweep.errors import ConfigError
from capsweep.training import build
from capsweep.training.size import Size, network_size

OBJECTIVE = "(objective)"  # what runs outside of the network
NETWORK = "(network)"  # what the network does by itself, outside of its layers


@runtime_checkable
class RoutedLayer(Protocol):
    """A layer whose children vote for its parents."""

    @property
    def votes_per_image(self) -> int:
        """How many votes one image casts: the pairs of a child and a parent that it votes for."""
        ...


@dataclass(frozen=True)
class Layer:
    """What a module has of its own, the modules inside it not counted.

    output_shape: of one image, and of the first output where there are several; None for what was
    never called. flops: see `Size`. votes: pairs of child and parent, once however often they are
    routed; a vote is one pose. activation_bytes: see `layers`. children_without_parent: capsules
    below that no kernel of the layer covers.
    """

    name: str
    kind: str
    output_shape: tuple[int, ...] | None
    parameters: int
    flops: int
    votes: int
    activation_bytes: int
    children_without_parent: int = 0

    @property
    def has_costs(self) -> bool:
        """Whether it has anything of its own."""
        return any((self.parameters, self.flops, self.votes, self.activation_bytes))


def measure_layers(config: Mapping[str, Any]) -> list[Layer]:
    """The layers of a canonical configuration's network, in the order in which it has them, then
    the objective. A container that has nothing of its own is left out.

    activation_bytes are what autograd saves for the backward pass of one training step, for each
    further image of the batch: images included, parameters and whatever does not grow with the
    batch left out, a storage that several layers save counted once, for the first of them. It is
    what eager torch saves on a CPU; a GPU's kernels may save a little less (a dropout mask of bytes
    instead of floats) or more. Raises ConfigError as `size` does.
    """
    network_size(config)
    with torch.device("meta"):
        network = build.build_network(by_reference(config))
    names = _name_modules(network)
    flops, shapes = _measure_forward(config, network, names)
    saved = _activation_bytes(config)
    parameters = _own_parameters(names)
    found = [
        Layer(
            name=name,
            kind=type(module).__name__,
            output_shape=shapes.get(name),
            parameters=parameters[name],
            flops=flops[name],
            votes=module.votes_per_image if isinstance(module, RoutedLayer) else 0,
            activation_bytes=saved[name],
            children_without_parent=getattr(module, "children_without_parent", 0),
        )
        for module, name in names.items()
    ]
    loss = type(build.build_objective(config)).__name__
    objective = Layer(OBJECTIVE, loss, (), 0, flops[OBJECTIVE], 0, saved[OBJECTIVE])
    containers = {name for module, name in names.items() if any(True for _ in module.children())}
    return [layer for layer in found if layer.has_costs or layer.name not in containers] + [
        objective
    ]


def sum_layers(found: Sequence[Layer]) -> Layer:
    """The sums over all layers; the parameters and FLOPs are those of `size`."""
    return Layer(
        name="total",
        kind="",
        output_shape=None,
        parameters=sum(layer.parameters for layer in found),
        flops=sum(layer.flops for layer in found),
        votes=sum(layer.votes for layer in found),
        activation_bytes=sum(layer.activation_bytes for layer in found),
    )


def _name_modules(network: nn.Module) -> dict[nn.Module, str]:
    return {module: name or NETWORK for name, module in network.named_modules()}


def _own_parameters(names: Mapping[nn.Module, str]) -> dict[str, int]:
    """How many each module has; one that several share is the first one's."""
    seen: set[nn.Parameter] = set()
    found = {}
    for module, name in names.items():
        own = [p for p in module.parameters(recurse=False) if p not in seen]
        found[name] = sum(parameter.numel() for parameter in own)
        seen.update(own)
    return found


@contextmanager
def _track_modules(
    names: Mapping[nn.Module, str], on_change: Callable[[str], object] = lambda name: None
) -> Iterator[list[str]]:
    """The names of the modules whose forward runs, the innermost last; `on_change` is told who
    was innermost whenever that is about to change.
    """
    running = [OBJECTIVE]

    def enter(module: nn.Module, *_: Any) -> None:
        on_change(running[-1])
        running.append(names[module])

    def leave(*_: Any) -> None:
        on_change(running.pop())

    handles = [module.register_forward_pre_hook(enter) for module in names]
    handles += [module.register_forward_hook(leave, always_call=True) for module in names]
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def _measure_forward(
    config: Mapping[str, Any], network: nn.Module, names: Mapping[nn.Module, str]
) -> tuple[Counter[str], dict[str, tuple[int, ...]]]:
    """FLOPs of one image and its output shape, by layer."""
    dataset = config["dataset"]
    whole = WithReconstruction(network, dataset)
    flops: Counter[str] = Counter()
    with torch.device("meta"), FlopCounterMode(display=False) as counter:

        def settle(name: str) -> None:
            flops[name] += counter.get_total_flops() - flops.total()

        with _track_modules(names, settle):
            image = torch.empty(1, *dataset["image_shape"])
            told = torchinfo.summary(whole, input_data=image, device="meta", verbose=0)
    shapes: dict[str, tuple[int, ...]] = {}
    for info in told.summary_list:
        if info.module in names and info.output_size:
            shapes.setdefault(names[info.module], tuple(info.output_size[1:]))
    return flops, shapes


def _activation_bytes(config: Mapping[str, Any]) -> Counter[str]:
    """By layer, how much more a batch of three saves than one of two: a batch of one would save
    less where layouts coincide.
    """
    more, less = _saved_bytes(config, 3), _saved_bytes(config, 2)
    return Counter({name: more[name] - less[name] for name in more})


def _saved_bytes(config: Mapping[str, Any], batch_size: int) -> Counter[str]:
    dataset = config["dataset"]
    storages: dict[int, torch.UntypedStorage] = {}  # kept, so that no address is used twice
    saved: Counter[str] = Counter()
    mixed = config["precision"] == "bf16-mixed"
    with FakeTensorMode():
        network = build.build_network(config).train()
        for parameter in network.parameters():
            storages[parameter.untyped_storage()._cdata] = parameter.untyped_storage()
        batch = _make_batch(dataset, batch_size)
        with _track_modules(_name_modules(network)) as running:

            def pack(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage._cdata not in storages:
                    storages[storage._cdata] = storage
                    saved[running[-1]] += storage.nbytes()
                return tensor

            saving = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            with saving, torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                build.build_objective(config)(network, batch)
    return saved


def _make_batch(dataset: Mapping[str, Any], batch_size: int) -> Batch:
    images_BCHW = torch.zeros(batch_size, *dataset["image_shape"])
    count = labels_per_image(dataset)
    if count == 1:
        return Batch(images_BCHW, torch.zeros(batch_size, dtype=torch.int64))
    targets_BLCHW = torch.zeros(batch_size, count, *dataset["image_shape"])
    return Batch(images_BCHW, torch.zeros(batch_size, count, dtype=torch.int64), targets_BLCHW)


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


def measure_size(config: Mapping[str, Any]) -> Size:
    """Build the network of a canonical configuration on the meta device, without memory, and push
    one image through it.

    Raises ConfigError naming the key of a target that may not be called, sizes that do not fit, or
    an optimiser that cannot be had as it is asked for.
    """
    build.check_targets(config)
    build.build_optimizer(config)
    dataset = config["dataset"]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = WithReconstruction(build.build_network(by_reference(config)), dataset)
        try:
            network(torch.empty(1, *dataset["image_shape"]))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"model={config['model']['name']}: {reason}") from error
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Size(parameters, counter.get_total_flops())

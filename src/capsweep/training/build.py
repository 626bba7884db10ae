"""The one place where configuration becomes objects; what is ours of an optimiser."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import instantiate
from torch import nn

from capsweep.config import code_identity, validation
from capsweep.config.cell import Cell, with_current_targets
from capsweep.data.batches import Presenter, seed_of
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import PreparedSplits, Reader, TestedElsewhere, prepare_splits
from capsweep.errors import ConfigError
from capsweep.model.convolution import set_method, set_weight_layout
from capsweep.shards.manifest import hash_declared
from capsweep.training import devices
from capsweep.training.step import Classification, Objective

if TYPE_CHECKING:
    from capsweep.training.module import CapsuleTask

FUSED_KEY = "trainer.fused_optimizer"


def _instantiate(section: Mapping[str, Any], **extra: Any) -> Any:
    """Instantiate a section; its `name` is for tables, not for the constructor.

    What may be called is checked each time: on a worker the section came with a job, in an
    evaluation with a ledger, and neither was composed here. Hydra would resolve interpolations.
    """
    validation.check_resolved("a stored configuration", section)
    called = with_current_targets({**_without_name(section), **extra})
    check_targets(called)
    return instantiate(called, _convert_="all")


def make_task(cell: Cell) -> "CapsuleTask":
    """Return the network, its weights drawn from the seed, with its objective and optimiser.

    Raises ConfigError where this node has no device for the cell.
    """
    # Here, since a plan builds networks too, and Lightning takes two seconds to import.
    from capsweep.training.module import CapsuleTask

    config = cell.config
    devices.prepare_device(config)
    torch.manual_seed(seed_of(config["seed"], "weights"))
    network = build_network(config, devices.choose_device(config).type)
    objective, optimizer = build_objective(config), build_optimizer(config)
    return CapsuleTask(network, objective, optimizer, config)


def is_channels_last(config: Mapping[str, Any], device: str) -> bool:
    """Return whether convolutions of a cell have the channels of a pixel side by side.

    device: its kind. On a GPU exact float32 takes three quarters of that time with channels first.
    """
    return device != "cuda" or config["precision"] != "32"


def build_network(config: Mapping[str, Any], device: str = "cpu") -> nn.Module:
    """Return the network of a canonical configuration, its routing drawn in.

    Its convolutions compute by `trainer.convolution`, or auto where a configuration has no such
    key, and are laid out for `device`, the kind on which it will be. Raises ConfigError naming the
    key when the sizes do not fit together.
    """
    routing = config["routing"]
    routed = {} if routing is None else {"routing": _without_name(routing)}
    try:
        network: nn.Module = _instantiate(config["model"], **routed)
        if is_channels_last(config, device):
            set_weight_layout(network, torch.channels_last)
    except Exception as error:  # Hydra wraps what a constructor raises; the rest goes on up
        if isinstance(error.__cause__, ValueError):
            raise ConfigError(str(error.__cause__)) from error
        if isinstance(error.__cause__, TypeError):  # another class than its section is for
            raise ConfigError(f"model._target_: {error.__cause__}") from error
        raise
    set_method(network, config.get("trainer", {}).get("convolution", "auto"))
    return network


def _without_name(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "name"}


def check_targets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless every `_target_` may be called; nothing is imported before each
    begins as it may.
    """
    current = with_current_targets(config)
    code_identity.check_targets(current)
    for key, target in code_identity.find_targets(current):
        _check_home(key, target)


def _check_home(key: str, target: str) -> None:
    """Raise ConfigError for a path below an allowed prefix that leads out of it:
    capsweep.data.cifar10.tarfile.open.
    """
    try:
        function = resolve_name(target)
    except Exception as error:  # importing a module somebody names can raise anything
        raise ConfigError(f"{key}: {target} cannot be found") from error
    home = getattr(function, "__module__", None) or ""
    if not callable(function) or not f"{home}.".startswith(code_identity.TARGETS):
        raise ConfigError(f"{key}: {target!r} may not be called; it is {home or type(function)}'s")


def build_reader(config: Mapping[str, Any]) -> Reader:
    """The reader of official files; with `dataset.test`, the test images come from there."""
    dataset = config["dataset"]
    reader: Reader = _instantiate(dataset["reader"])
    return TestedElsewhere(reader, _instantiate(dataset["test"])) if "test" in dataset else reader


def build_source(config: Mapping[str, Any]) -> Reader:
    """Return what is trained and tested on: official files, or with `dataset.shards` what was made
    of them.
    """
    dataset = config["dataset"]
    if "shards" not in dataset:
        return build_reader(config)
    origin = hash_declared({"sha256": dataset["reader"]["sha256"]})
    targets = config["loss"]["reconstruction"]["weight"] > 0
    make = _instantiate(dataset["shards"])
    return make(digits=build_reader(config), origin=origin, targets=targets)


def build_presenter(config: Mapping[str, Any]) -> Presenter:
    """How examples become batches: `dataset.batches`, or shifted by `dataset.shift` pixels."""
    dataset = config["dataset"]
    if "batches" not in dataset:
        return partial(ShiftedImages, shift=dataset["shift"])
    return _instantiate(dataset["batches"])


def load_splits(config: Mapping[str, Any], folder: str, device: torch.device) -> PreparedSplits:
    """Return the splits of a data set on a device: `train`, `validation` and `test`."""
    dataset = config["dataset"]
    return prepare_splits(
        build_source(config),
        folder,
        build_presenter(config),
        dataset["validation"],
        device,
        dataset.get("examples"),
        dataset["image_shape"],
    )


def build_objective(config: Mapping[str, Any]) -> Objective:
    """The loss of a batch."""
    classification: Classification = _instantiate(config["loss"]["classification"])
    weight = config["loss"]["reconstruction"]["weight"]
    return Objective(classification, weight, validation.is_on_logits(config["loss"]))


def build_optimizer(config: Mapping[str, Any]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return what makes the optimiser of a network.

    Raises ConfigError where it shall be fused and its class has no fused form.
    """
    make: partial[torch.optim.Optimizer] = _instantiate(config["optim"]["optimizer"])
    options = {"fused": True} if config["trainer"]["fused_optimizer"] else {}
    if options and "fused" not in inspect.signature(make.func).parameters:
        target = config["optim"]["optimizer"]["_target_"]
        raise ConfigError(f"{FUSED_KEY}: {target} has no fused form; set {FUSED_KEY}=false")

    def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
        optimizer = make(group_parameters(network, config["optim"]["decayed"]), **options)
        optimizer.register_load_state_dict_post_hook(_lay_out_states)
        return optimizer

    return make_optimizer


def _lay_out_states(optimizer: torch.optim.Optimizer) -> None:
    """Lay moments that were loaded out as their parameters are.

    They may have been saved where convolutions have another layout. Fused kernels count on the same
    one, and do not check it.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_like = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_like and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def group_parameters(network: nn.Module, decayed: str) -> list[dict[str, Any]]:
    """The optimiser's groups. decayed: all parameters, or weights, which leaves biases and what a
    routing has one of for each parent alone, as the authors of "Matrix capsules with EM routing"
    do.
    """
    if decayed == "all":
        return [{"params": list(network.parameters())}]
    weights, others = [], []
    for name, parameter in network.named_parameters():
        is_weight = parameter.dim() > 1 and "bias" not in name.rpartition(".")[2]
        (weights if is_weight else others).append(parameter)
    return [{"params": weights}, {"params": others, "weight_decay": 0.0}]

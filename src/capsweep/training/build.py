"""Build objects from a configuration: network, data, loss and optimiser.

No other module calls Hydra's `instantiate`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
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

FUSED_KEY, WEIGHT_KEY = "trainer.fused_optimizer", "loss.class_weight"


def _instantiate(section: Mapping[str, Any], **extra: Any) -> Any:
    """Build the object that a section of a configuration describes.

    The section may come from an untrusted source, such as a job or a ledger. Each call therefore
    checks that all targets in the section are allowed. Each call also checks that the section has
    no interpolations, because Hydra would resolve interpolations.

    Args:
        section: A section of a configuration. The key `_target_` names a class or function, and the
            other keys are its arguments. The key `name` is not an argument, because only tables use
            this key.
        extra: Further arguments of the class or function.
    """
    validation.check_resolved("a stored configuration", section)
    called = with_current_targets({**_without_name(section), **extra})
    check_targets(called)
    return instantiate(called, _convert_="all")


def make_task(cell: Cell) -> "CapsuleTask":
    """Build the task of a cell: the network, the loss and the optimiser.

    The initial weights of the network are drawn with a seed that depends only on the cell's seed.

    Raises:
        ConfigError: If this node has no device for the cell, or if the network, loss or optimiser
            cannot be built with the settings of the cell.
    """
    # Imported here, because Lightning takes two seconds to import, and a plan builds only networks.
    from capsweep.training.module import CapsuleTask

    config = cell.config
    devices.prepare_device(config)
    torch.manual_seed(seed_of(config["seed"], "weights"))
    network = build_network(config, devices.choose_device(config).type)
    objective, optimizer = build_objective(config), build_optimizer(config)
    return CapsuleTask(network, objective, optimizer, config)


def prepare_training(
    cell: Cell, folder: str, device: torch.device
) -> tuple["CapsuleTask", PreparedSplits]:
    """Start to measure memory, and make the task of a cell and its splits of the data.

    Args:
        cell: The cell.
        folder: The folder of this node's data files (`places.data`).
        device: The device that trains the cell.

    Raises:
        ConfigError: As `make_task`, `load_splits` and `weigh_classes` raise it.
        DataError: If the data set cannot be read or verified.
        StoreError: If the object store does not answer.
    """
    devices.start_memory_peak()
    if device.type == "cpu":
        devices.keep_freed_memory()
    task, splits = make_task(cell), load_splits(cell.config, folder, device)
    weigh_classes(task, splits, device)
    return task, splits


def is_channels_last(config: Mapping[str, Any], device: str) -> bool:
    """Return whether the convolutions of a cell use the channels-last memory format.

    On a GPU, cells with `precision` "32" use channels first. A training step then takes three
    quarters of the time that it takes with channels last. All other cells use channels last.

    Args:
        config: The configuration of the cell.
        device: The type of the device, such as "cuda".
    """
    return device != "cuda" or config["precision"] != "32"


def build_network(config: Mapping[str, Any], device: str = "cpu") -> nn.Module:
    """Build the network of a configuration, including the routing.

    The key `trainer.convolution` names the method of the convolutions. Without this key, the method
    is "auto".

    Args:
        config: A canonical configuration, as `validation.make_canonical` returns it.
        device: The type of the device that will run the network, such as "cuda". The memory format
            of the convolutions depends on this type.

    Raises:
        ConfigError: If a `_target_` may not be called, if sizes do not fit together, or if
            `model._target_` does not accept the settings in the section `model`. The message names
            the key.
    """
    routing = config["routing"]
    routed = {} if routing is None else {"routing": _without_name(routing)}
    try:
        network: nn.Module = _instantiate(config["model"], **routed)
        if is_channels_last(config, device):
            set_weight_layout(network, torch.channels_last)
    except Exception as error:  # Hydra wraps the exceptions of a constructor
        if isinstance(error.__cause__, ValueError):
            raise ConfigError(str(error.__cause__)) from error
        if isinstance(error.__cause__, TypeError):  # the class does not belong in this section
            raise ConfigError(f"model._target_: {error.__cause__}") from error
        raise
    set_method(network, config.get("trainer", {}).get("convolution", "auto"))
    return network


def _without_name(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "name"}


def check_targets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if any `_target_` of a configuration may not be called.

    The prefixes of all targets are checked before any target is imported.
    """
    current = with_current_targets(config)
    code_identity.check_targets(current)
    for key, target in code_identity.find_targets(current):
        _check_home(key, target)


def _check_home(key: str, target: str) -> None:
    """Raise ConfigError if a target is not callable, or is not defined in an allowed module.

    A check of the name is not enough. For example, `capsweep.data.cifar10.tarfile.open` begins with
    the name of an allowed module, but is a function of the standard library.
    """
    try:
        item = resolve_name(target)
    except Exception as error:  # the import of an arbitrary module can raise any exception
        raise ConfigError(f"{key}: {target} cannot be imported; correct it") from error
    home = getattr(item, "__module__", None) or ""
    if not callable(item) or not f"{home}.".startswith(code_identity.TARGETS):
        raise ConfigError(f"{key}: {target!r} may not be called; it is from {home or type(item)}")


def build_reader(config: Mapping[str, Any]) -> Reader:
    """Build the reader of a data set's official files.

    The key `dataset.reader` describes the reader. If the configuration also has the key
    `dataset.test`, this key describes a second reader, and the second reader reads the test images.
    """
    dataset = config["dataset"]
    reader: Reader = _instantiate(dataset["reader"])
    return TestedElsewhere(reader, _instantiate(dataset["test"])) if "test" in dataset else reader


def build_source(config: Mapping[str, Any]) -> Reader:
    """Build the reader of a data set's examples.

    If the configuration has the key `dataset.shards`, the reader reads shards. Otherwise the reader
    reads the official files.
    """
    dataset = config["dataset"]
    if "shards" not in dataset:
        return build_reader(config)
    origin = hash_declared({"sha256": dataset["reader"]["sha256"]})
    targets = config["loss"]["reconstruction"]["weight"] > 0
    make = _instantiate(dataset["shards"])
    return make(digits=build_reader(config), origin=origin, targets=targets)


def build_presenter(config: Mapping[str, Any]) -> Presenter:
    """Build the presenter, which makes batches from the examples of a split.

    The key `dataset.batches` describes the presenter. Without this key, the presenter makes batches
    of images and shifts training images at random by up to `dataset.shift` pixels.
    """
    dataset = config["dataset"]
    if "batches" not in dataset:
        return partial(ShiftedImages, shift=dataset["shift"])
    return _instantiate(dataset["batches"])


def load_splits(config: Mapping[str, Any], folder: str, device: torch.device) -> PreparedSplits:
    """Prepare the splits `train`, `validation` and `test` of a data set on a device.

    Args:
        config: The configuration of a cell.
        folder: The folder of this node's data files (`places.data`).
        device: The device that trains the cell.

    Raises:
        DataError: If the data set cannot be read or verified.
        StoreError: If the object store does not answer.
        ConfigError: If the settings of the data set contradict each other or the images.
    """
    splits = build_source(config).read(folder)
    return prepare_splits(splits, build_presenter(config), config["dataset"], device)


def build_objective(config: Mapping[str, Any]) -> Objective:
    """Build the objective, which computes the loss of a batch."""
    classification: Classification = _instantiate(config["loss"]["classification"])
    weight = config["loss"]["reconstruction"]["weight"]
    return Objective(classification, weight, validation.is_on_logits(config["loss"]))


def weigh_classes(task: "CapsuleTask", splits: PreparedSplits, device: torch.device) -> None:
    """Give the objective of a task the weight of each class, as `loss.class_weight` says.

    With "balanced", the weight of a class is M / (N * M_c), for M training images of N classes, of
    which M_c show the class. For images that are composed of others, the others are counted.

    Args:
        task: The task; its objective is replaced.
        splits: The data set, whose training images are counted.
        device: The device that trains the cell.

    Raises:
        ConfigError: If the weights must be balanced, and the training images are in shards.
    """
    # Configurations of earlier versions do not have the key `loss.class_weight`.
    weights, labels_N = task.config["loss"].get("class_weight"), splits.trained_N
    if weights is None:
        return
    if weights == "balanced":
        if labels_N is None:
            raise ConfigError(f"{WEIGHT_KEY}=balanced cannot count images of shards; set a list")
        count_N = torch.bincount(labels_N, minlength=task.config["dataset"]["num_classes"])
        weights = len(labels_N) / (len(count_N) * count_N.clamp(min=1))
    weight_N = torch.as_tensor(weights, dtype=torch.float32, device=device)
    task.objective = replace(task.objective, class_weight_N=weight_N)


def build_optimizer(config: Mapping[str, Any]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return a function that makes the optimiser of a network.

    Raises:
        ConfigError: If `trainer.fused_optimizer` is true and the optimiser has no fused form.
    """
    make: partial[torch.optim.Optimizer] = _instantiate(config["optim"]["optimizer"])
    options = {"fused": True} if config["trainer"]["fused_optimizer"] else {}
    if options and "fused" not in inspect.signature(make.func).parameters:
        target = config["optim"]["optimizer"]["_target_"]
        raise ConfigError(f"{FUSED_KEY}: {target} has no fused form; set {FUSED_KEY}=false")

    def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
        optimizer = make(group_parameters(network, config["optim"]["decayed"]), **options)
        optimizer.register_load_state_dict_post_hook(_match_memory_format)
        return optimizer

    return make_optimizer


def _match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    """Convert the state that an optimiser has loaded to the memory format of the parameters.

    The state may come from a machine whose convolutions use another format. A fused optimiser needs
    the same format for parameters and state, but does not check that the formats are the same.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_like = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_like and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def group_parameters(network: nn.Module, decayed: str) -> list[dict[str, Any]]:
    """Make the parameter groups of an optimiser: parameters with and without weight decay.

    Args:
        network: The network.
        decayed: "all": weight decay acts on every parameter. "weights": weight decay acts on all
            parameters except biases and parameters with fewer than two dimensions. Some routings,
            for example, have a parameter with one value per parent. The authors of "Matrix capsules
            with EM routing" also exclude biases and parameters with one value per parent.
    """
    if decayed == "all":
        return [{"params": list(network.parameters())}]
    weights, others = [], []
    for name, parameter in network.named_parameters():
        is_weight = parameter.dim() > 1 and "bias" not in name.rpartition(".")[2]
        (weights if is_weight else others).append(parameter)
    return [{"params": weights}, {"params": others, "weight_decay": 0.0}]

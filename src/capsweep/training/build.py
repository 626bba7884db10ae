"""The one place where configuration becomes objects."""

from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from hydra.utils import instantiate
from torch import nn

from capsweep.config import validation
from capsweep.config.cell import with_current_targets
from capsweep.data.batches import Presenter, StreamPresenter, StreamReader
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import Reader, TestedElsewhere
from capsweep.errors import ConfigError
from capsweep.model.convolution import to_channels_last
from capsweep.shards.manifest import hash_declared
from capsweep.training import optim
from capsweep.training.objective import Classification, Objective


def _instantiate(section: Mapping[str, Any], **extra: Any) -> Any:
    """Instantiate a section; its `name` is for tables, not for the constructor.

    What may be called is checked each time: on a worker the section came with a job, in an
    evaluation with a ledger, and neither was composed here.
    """
    whole = with_current_targets({**_without_name(section), **extra})
    check_targets(whole)
    return instantiate(whole, _convert_="all")


def build_network(config: Mapping[str, Any]) -> nn.Module:
    """The network of a canonical configuration, its routing drawn in; channels last.

    Raises ConfigError naming the key when the sizes do not fit together.
    """
    routing = config["routing"]
    wired = {} if routing is None else {"routing": _without_name(routing)}
    try:
        return to_channels_last(_instantiate(config["model"], **wired))
    except Exception as error:  # Hydra wraps what a constructor raises; the rest goes on up
        if isinstance(error.__cause__, ValueError):
            raise ConfigError(str(error.__cause__)) from error
        if isinstance(error.__cause__, TypeError):  # another class than its section is for
            raise ConfigError(f"model._target_: {error.__cause__}") from error
        raise


def _without_name(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "name"}


def check_targets(config: Mapping[str, Any]) -> None:
    """`check_target` of all there are; nothing is imported before each begins as it may."""
    validation.check_targets(config)
    for key, target in validation.find_targets(with_current_targets(config)):
        check_target(key, target)


def _resolve_target(target: str) -> object:
    check_target("_target_", target)
    return resolve_name(target)


def check_target(key: str, target: str) -> None:
    """Raise ConfigError unless a `_target_` may be called; a path below an allowed prefix may still
    lead out of it: capsweep.storage.downloads.os.system.
    """
    validation.check_target(key, target)
    try:
        found = resolve_name(target)
    except Exception as error:  # importing a module somebody names can raise anything
        raise ConfigError(f"{key}: {target} cannot be found") from error
    home = getattr(found, "__module__", None) or ""
    if not callable(found) or not f"{home}.".startswith(validation.TARGETS):
        raise ConfigError(f"{key}: {target!r} may not be called; it is {home or type(found)}'s")


def build_reader(config: Mapping[str, Any]) -> Reader:
    """The reader of official files; with `dataset.test`, the test images come from there."""
    dataset = config["dataset"]
    whole: Reader = _instantiate(dataset["reader"])
    return TestedElsewhere(whole, _instantiate(dataset["test"])) if "test" in dataset else whole


def build_source(config: Mapping[str, Any]) -> Reader | StreamReader:
    """What is trained and tested on: official files, or with `dataset.shards` what was made of
    them.
    """
    dataset = config["dataset"]
    if "shards" not in dataset:
        return build_reader(config)
    origin = hash_declared({"sha256": dataset["reader"]["sha256"]})
    targets = config["loss"]["reconstruction"]["weight"] > 0
    return _instantiate(dataset["shards"])(
        digits=build_reader(config), origin=origin, targets=targets
    )


def build_presenter(config: Mapping[str, Any]) -> Presenter | StreamPresenter:
    """How examples become batches: `dataset.batches`, or shifted by `dataset.shift` pixels."""
    dataset = config["dataset"]
    if "batches" not in dataset:
        return partial(ShiftedImages, shift=dataset["shift"])
    return _instantiate(dataset["batches"])


def build_objective(config: Mapping[str, Any]) -> Objective:
    """The loss of a batch."""
    classification: Classification = _instantiate(config["loss"]["classification"])
    weight = config["loss"]["reconstruction"]["weight"]
    on_logits = config["loss"]["name"] in validation.ON_LOGITS
    return Objective(classification, weight, config["dataset"]["num_classes"], on_logits)


def build_optimizer(config: Mapping[str, Any]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """What makes the optimiser of a network.

    Raises ConfigError where it shall be fused and its class has no fused form.
    """
    make: Callable[..., torch.optim.Optimizer] = _instantiate(
        config["optim"]["optimizer"], **optim.fused_keywords(config, _resolve_target)
    )
    decayed = config["optim"]["decayed"]
    return lambda network: make(optim.parameter_groups(network, decayed))

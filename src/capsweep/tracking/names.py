"""Names of W&B runs, made for comparing: `capsnet · T=3 · recon · seed 0`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from capsweep.config.cell import SCIENCE, Cell, get
from capsweep.tracking.labels import Labels

SEPARATOR = " · "
LONGEST = 128  # characters of a name, at W&B
ITERATIONS, WEIGHT = "routing.num_iters", "loss.reconstruction.weight"


def run_name(
    config: Mapping[str, Any],
    arm: str,
    place: Sequence[str] = (),
    weights: Collection[float] = (),
    signature: str = "",
) -> str:
    """The name of a cell: its arm, routing iterations, whether it reconstructs, what else of its
    place tells it apart, its seed.

    place: its coordinates as overrides. weights: of reconstruction, in all cells that it is
    compared with; where they differ, the name says which. signature: ends a name that is too long.
    """
    said = [text for text in place if text.partition("=")[0] not in (ITERATIONS, WEIGHT)]
    parts = [arm, *_routed(config), *_reconstructed(config, weights), *said]
    name = SEPARATOR.join([*parts, f"seed {config['seed']}"])
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - len(signature) - 2]}… {signature}"


def labels_of(cell: Cell) -> Labels:
    """Labels of a cell that is run by itself: its model is the arm, its overrides are its place."""
    model = cell.config["model"]["name"]
    known = ("model", "seed")  # in the name anyway
    place = [
        text
        for text in cell.overrides
        if (key := text.partition("=")[0]) not in known and key.partition(".")[0] in SCIENCE
    ]
    name = run_name(cell.config, model, place, signature=cell.signature)
    return Labels(job_type=model, name=name, tags=tags(cell.config))


def tags(config: Mapping[str, Any], *further: str) -> tuple[str, ...]:
    """By what runs of several sweeps are found: data set, model, routing variant."""
    routing = config["routing"]
    variant = [] if routing is None else [routing["name"]]
    found = [*further, config["dataset"]["name"], config["model"]["name"], *variant]
    return tuple(dict.fromkeys(tag[:64] for tag in found))


def weight(config: Mapping[str, Any]) -> float:
    """The weight of the reconstruction loss; 0 where nothing is reconstructed."""
    return get(config, WEIGHT) or 0.0


def _routed(config: Mapping[str, Any]) -> list[str]:
    iterations = get(config, ITERATIONS)
    return [] if iterations is None else [f"T={iterations}"]


def _reconstructed(config: Mapping[str, Any], weights: Collection[float]) -> list[str]:
    """A network without routing has no capsules, of which one would be decoded."""
    if config["routing"] is None:
        return []
    own = weight(config)
    if own == 0:
        return ["no recon"]
    return ["recon" if {own, *weights} <= {own, 0} else f"recon {own:g}"]

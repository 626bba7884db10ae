"""What a W&B run is called, and how it is found again: `capsnet · T=3 · recon · seed 0`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.config.cell import SCIENCE, Cell, get

SEPARATOR = " · "
LONGEST, LONGEST_TAG = 128, 64  # characters of a name and of a tag, at W&B
ITERATIONS, WEIGHT = "routing.num_iters", "loss.reconstruction.weight"


@dataclass(frozen=True)
class Labels:
    """How a run is found again: W&B's group, job type, name, notes and tags; report: the command
    that prints the table which it was trained for.
    """

    group: str = "train"
    job_type: str = "train"
    name: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    report: str = ""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Labels":
        """Return the labels whose fields these are, as JSON has them."""
        return cls(**{**plain, "tags": tuple(plain["tags"])})


def labels_of(cell: Cell) -> Labels:
    """Labels of a cell that is run by itself: its model is the arm, its overrides are its place."""
    model = cell.config["model"]["name"]
    named = ("model", "seed")  # in the name anyway
    place = [
        text
        for text in cell.overrides
        if (key := text.partition("=")[0]) not in named and key.partition(".")[0] in SCIENCE
    ]
    name = run_name(cell.config, model, place, signature=cell.signature)
    return Labels(job_type=model, name=name, tags=run_tags(cell.config))


def run_name(
    config: Mapping[str, Any],
    arm: str,
    place: Sequence[str] = (),
    weights: Collection[float] = (),
    signature: str = "",
) -> str:
    """The name of a cell's run: arm, routing iterations, reconstruction, further axes, seed.

    place: the cell's coordinates as overrides. weights: of the reconstruction loss in all cells
    that it is compared with; where they differ, the name has the weight. signature: ends a name
    that is too long.
    """
    axes = [text for text in place if text.partition("=")[0] not in (ITERATIONS, WEIGHT)]
    iterations = get(config, ITERATIONS)
    parts = [arm] if iterations is None else [arm, f"T={iterations}"]
    if config["routing"] is not None:  # without, there are no capsules to decode
        weight = reconstruction_weight(config)
        same = {weight, *weights} <= {weight, 0}
        parts.append("no recon" if weight == 0 else "recon" if same else f"recon {weight:g}")
    name = SEPARATOR.join([*parts, *axes, f"seed {config['seed']}"])
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - len(signature) - 2]}… {signature}"


def run_tags(config: Mapping[str, Any], *further: str) -> tuple[str, ...]:
    """Tags that find runs of several sweeps: data set, model, routing variant; `limited` where the
    data was cut.
    """
    routing = config["routing"]
    variant = [] if routing is None else [routing["name"]]
    limited = [] if config["limit_batches"] is None else ["limited"]
    tags = [*further, *limited, config["dataset"]["name"], config["model"]["name"], *variant]
    return tuple(dict.fromkeys(tag[:LONGEST_TAG] for tag in tags))


def reconstruction_weight(config: Mapping[str, Any]) -> float:
    """The weight of the reconstruction loss; 0 where nothing is reconstructed."""
    return get(config, WEIGHT) or 0.0

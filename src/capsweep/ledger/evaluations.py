"""What the evals/ of a cell may hold: figures that are known by name."""

from pathlib import PurePosixPath

# In the order in which they are offered and shown; the name of a file begins with its kind.
KINDS = (
    "reconstructions",
    "perturbations",
    "segmentation",
    "vote-distances",
    "routing-change",
    "couplings",
    "training-loss",
)


def kind_of(name: str) -> str:
    """What a file below evals/ shows, by its name; one of no known kind is a kind by itself."""
    stem = PurePosixPath(name).stem
    return next((kind for kind in KINDS if stem.startswith(kind)), stem)

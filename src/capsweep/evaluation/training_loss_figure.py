"""Figure A.2 of "Dynamic Routing Between Capsules", drawn from losses."""

from typing import IO

from capsweep.evaluation import curve_figure
from capsweep.evaluation.curve_figure import Panel
from capsweep.evaluation.training_loss import Curve, Losses


def draw(losses: Losses, name: str, file: IO[bytes]) -> None:
    """Write a PNG: a curve for each number of routing iterations, in a linear and a log scale."""
    curves = [_curve(curve) for curve in losses.curves]
    panels = [Panel("training loss", curves), Panel("training loss", curves, "log")]
    title = f"training loss by routing iterations: cell {name} and its like"
    curve_figure.draw(panels, "step", title, caption(losses), file)


def caption(losses: Losses) -> str:
    """Every choice, and what is not shown."""
    notes = [
        "all finished cells that differ in routing.num_iters and seed alone; loss as each was "
        "trained with, averaged over an epoch, at its last step",
        "mean over seeds, band: lowest to highest seed, at the steps that all seeds have",
    ]
    for curve in losses.curves:
        if min(curve.epochs) != max(curve.epochs):
            notes.append(
                f"{_name(curve)}: seeds have {min(curve.epochs)} to {max(curve.epochs)} epochs"
            )
    if losses.codes > 1:
        notes.append(f"the cells were made by {losses.codes} versions of the code")
    notes += [f"left out: {reason}" for reason in losses.left_out]
    return "\n".join(notes)


def missing(losses: Losses) -> str | None:
    """What there is nothing to compare with; None where there is."""
    numbers = {curve.iterations for curve in losses.curves}
    if len(numbers) > 1:
        return None
    (iterations,) = numbers
    if iterations is None:
        return "its network does not route: there is one curve, and nothing to compare"
    return (
        f"its ledger has cells with routing.num_iters={iterations} alone; finish the same cell "
        "with others to compare them"
    )


def _name(curve: Curve) -> str:
    if curve.iterations is None:
        return "no routing"
    return f"{curve.iterations} iteration{'s' * (curve.iterations > 1)}"


def _curve(curve: Curve) -> curve_figure.Curve:
    seeds = f"{len(curve.seeds)} seed{'s' * (len(curve.seeds) > 1)}"
    return curve_figure.Curve(
        label=f"{_name(curve)} ({seeds})",
        x=curve.step,
        middle=curve.loss_SE.mean(axis=0),
        low=curve.loss_SE.min(axis=0),
        high=curve.loss_SE.max(axis=0),
    )

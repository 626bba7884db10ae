"""Figure 3 of "Dynamic Routing Between Capsules": test examples and their reconstructions."""

from argparse import Namespace
from collections.abc import Iterator

from capsweep.lab.evaluation import decoded
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import Drawing
from capsweep.report import charts


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure: correct examples, drawn from the label's capsule; then failures, each drawn
    from its label's capsule and from the predicted one.
    """
    columns = decoded.draw_columns(*loader.load_tested(name), options, classes=1)
    examples = columns.examples
    classes = zip(examples.labels_KL, examples.predictions_KL, columns.from_KL, strict=True)
    above = [f"({label[0]}, {said[0]}, {drawn[0]})" for label, said, drawn in classes]
    caption = (
        "(l, p, r): label, prediction, and the class whose capsule is drawn, all others masked; "
        f"{columns.describe_examples()}; each failure is drawn from its label's capsule, then from "
        f"the predicted one; {charts.SCALED}"
    )
    drawn_KHW3 = charts.to_rgb(columns.drawn_KLCHW[:, 0])
    yield columns.make_drawing(("reconstructions", name), options, drawn_KHW3, above, caption)

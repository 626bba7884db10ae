"""`capsweep eval NAME SWEEP` computes numbers from the cells of a sweep and prints a table.

The numbers of a cell are stored in the folder `evals/` of the cell. But `eval ensemble` stores only
the table, because its numbers belong to several cells together.
"""

import argparse

from capsweep.cli.program import DEVICE, SWEEP, Command, option, whole_number
from capsweep.lab.commands import make_list_type
from capsweep.lab.evaluation import TRACED_EXAMPLES

METHODS = ("fgsm", "bim", "pgd")


parse_methods = make_list_type(f"some of {', '.join(METHODS)}", str, METHODS.__contains__)
parse_eps = make_list_type("above 0, such as 0.1,0.2", float, lambda eps: 0 < eps < float("inf"))
FIRST_IMAGES = option(
    "--examples",
    f"number of test images to use ({TRACED_EXAMPLES})",
    type=whole_number(1),
    default=TRACED_EXAMPLES,
)
ATTACK = (
    option("--method", "some of fgsm (default), bim, pgd", type=parse_methods, default="fgsm"),
    option("--eps", "largest changes, such as 0.1,0.2 (0.1)", type=parse_eps, default="0.1"),
    option("--steps", "steps of bim and pgd (10)", type=whole_number(1), default=10),
    option("--restarts", "random restarts of pgd (5)", type=whole_number(1), default=5),
    option("--targeted", "aim at each wrong class in turn; default: any", action="store_true"),
    option("--transfer", "an arm, whose images are also tried on all other arms, and back"),
    option("--examples", "number of test examples; default: all", type=whole_number(1)),
)
COMMANDS: dict[str, Command] = {
    "attack": ("test networks on adversarial images", (*SWEEP, *ATTACK, DEVICE)),
    "ensemble": ("add the stored scores of each row's seeds", SWEEP),
    "multicrop": ("average the scores of 13 crops of each test image", (*SWEEP, DEVICE)),
    "routing": ("measure couplings and their effect on errors", (*SWEEP, FIRST_IMAGES, DEVICE)),
}


def run(parsed: argparse.Namespace) -> None:
    """Evaluate the finished cells of a sweep; print a table, and write the table to a file."""
    from capsweep.lab.evaluation import averages, robustness, routing
    from capsweep.lab.evaluation.sweep_cells import load_cells

    publish = {
        "attack": robustness.publish_attacks,
        "ensemble": averages.publish_ensemble,
        "multicrop": averages.publish_multicrop,
        "routing": routing.publish_routing,
    }
    publish[parsed.command](load_cells(parsed), parsed)

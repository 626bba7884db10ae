"""`capsweep eval NAME SWEEP`: a table of what is computed from the cells of a sweep, whose numbers
stand in their evals/.
"""

import argparse

from capsweep.cli.program import DEVICE, SWEEP, Command, whole_number
from capsweep.lab.commands import listed, option
from capsweep.lab.evaluation import TRACED_EXAMPLES

METHODS = ("fgsm", "bim", "pgd")


parse_methods = listed(f"of {', '.join(METHODS)}", str, METHODS.__contains__)
parse_eps = listed("above 0, such as 0.1,0.2", float, lambda eps: 0 < eps < float("inf"))
FIRST_IMAGES = option(
    "--examples",
    f"the first so many test images ({TRACED_EXAMPLES})",
    type=whole_number(1),
    default=TRACED_EXAMPLES,
)
ATTACK = (
    option("--method", "of fgsm (default), bim, pgd", type=parse_methods, default="fgsm"),
    option("--eps", "largest change of a value: 0.1,0.2", type=parse_eps, default="0.1"),
    option("--steps", "of bim and pgd (default 10)", type=whole_number(1), default=10),
    option("--restarts", "of pgd (default 5)", type=whole_number(1), default=5),
    option("--targeted", "at each of the other classes; default: at any", action="store_true"),
    option("--examples", "the first so many test examples; all", type=whole_number(1)),
)
COMMANDS: dict[str, Command] = {
    "attack": ("test networks on images that mislead them", (*SWEEP, *ATTACK, DEVICE)),
    "ensemble": ("add the scores of each row's seeds, from stored predictions", SWEEP),
    "multicrop": ("average the scores of 13 crops of each test image", (*SWEEP, DEVICE)),
    "routing": ("measure couplings, and what they do for answers", (*SWEEP, FIRST_IMAGES, DEVICE)),
}


def run(parsed: argparse.Namespace) -> None:
    """Evaluate the finished cells of a sweep, print their table and write it."""
    from capsweep.lab.evaluation import attack, averages, routing
    from capsweep.lab.evaluation.sweep_cells import load_cells

    publish = {
        "attack": attack.publish_attacks,
        "ensemble": averages.publish_ensemble,
        "multicrop": averages.publish_multicrop,
        "routing": routing.publish_routing,
    }
    publish[parsed.command](load_cells(parsed), parsed)

"""`capsweep eval predict CELL --file X` shows what a trained network says of a user's pictures."""

import argparse
from pathlib import Path

from capsweep.cli.program import DEVICE, SIGNATURE, Command, option

PREDICT = (
    SIGNATURE,
    option("--file", "an image, a folder of images, or an .npz file", type=Path, required=True),
    option("--invert", "exchange bright and dark, for dark digits on paper", action="store_true"),
    DEVICE,
)
COMMANDS: dict[str, Command] = {"predict": ("classify your own pictures", PREDICT)}


def run(parsed: argparse.Namespace) -> int:
    """Classify pictures, print the classes, and write a table and a picture of the results.

    Returns:
        The exit status: 1 if a picture could not be read, else 0.
    """
    from capsweep.cli.ledger import find_storage
    from capsweep.config.places import locate_folder
    from capsweep.lab.evaluation import predictions
    from capsweep.lab.evaluation.sweep_cells import open_cell

    # The pictures are listed first, because reading the data set takes longer.
    pictures = predictions.list_pictures(parsed.file)
    loader, signature = open_cell(parsed)
    folder = locate_folder(find_storage(parsed)) / "predictions" / signature
    return predictions.publish_predictions(loader.load(signature), pictures, parsed, folder)

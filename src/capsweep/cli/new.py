"""`capsweep new`: write the files of a new routing, loss, model, data set or sweep.

The files are copies of the examples in `docs/examples/new/KIND`, with the new name instead of
`mine`. The files of a data set also contain numbers that are read from the data.
"""

import argparse
import json
import keyword
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsweep.config import package_files
from capsweep.errors import UserError
from capsweep.storage.files import write_text

EXAMPLES = Path("docs", "examples", "new")
# Words that a command line or a YAML file does not read as a name.
RESERVED = ("false", "inf", "nan", "no", "none", "null", "off", "on", "true", "yes")
LONGEST = 24  # most characters of a name, so that lines of code stay below 100 characters
OPTIONS = ("file", "test", "validation", "size")  # options of `new dataset`
MOST_LINES = 30  # of classes that are printed
# A note is printed for images with a shorter side, in pixels, or with more pixels than this.
SMALL, LARGE = 17, 96 * 96
# The commands to type next, by the kind of the new files.
TRAIN = "train KIND=NAME debug=fast"
BESIDE = "BASELINE=capsnet"  # the first row of this arm has the shipped routing and loss
COMMANDS = {
    "routing": ('test ARGS="-k NAME tests/model/routing"', TRAIN, f"sweep ROUTING=3,NAME {BESIDE}"),
    "loss": ("test ARGS=tests/model/test_NAME_loss.py", TRAIN, f"sweep loss=margin,NAME {BESIDE}"),
    "model": ("test ARGS=tests/model/test_NAME.py", TRAIN, "sweep MODEL=NAME"),
    "dataset": ("plan DATASET=NAME", TRAIN, "sweep DATASET=NAME"),
    "sweep": ("plan SWEEP=NAME", "sweep SWEEP=NAME", "report SWEEP=NAME"),
}


def run_new(parsed: argparse.Namespace) -> None:
    """Write the new files, and print their names and the commands to type next."""
    kind, checkout = parsed.kind, package_files.CHECKOUT
    if not (checkout / EXAMPLES).is_dir():
        raise UserError(
            "`capsweep new` writes source files, and this is an installed package; run it in a "
            "clone of the repository, after make setup"
        )
    words = name_words(parsed.name)
    if kind == "dataset":
        fill_examples(checkout, kind, words)  # refuses a name that is taken, before data are read
        words |= import_data(checkout / f"conf/dataset/{parsed.name}.npz", parsed)
    elif any(getattr(parsed, name) is not None for name in OPTIONS):
        names = ", ".join(f"--{name}" for name in OPTIONS)
        raise UserError(f"{names} are only for new dataset, not for new {kind}")
    if kind == "sweep":
        words["ROUTINGS"] = ", ".join(list_routings(checkout, parsed.name))
    texts = fill_examples(checkout, kind, words)
    for path, text in texts.items():
        write_text(path, text)
        print(f"wrote {path.relative_to(checkout)}")
    print(f"next, in {checkout}:")
    for command in COMMANDS[kind]:
        print(f"  make {replace_words(command, {**words, 'KIND': kind, 'NAME': parsed.name})}")


def name_words(name: str) -> dict[str, str]:
    """Return the words that replace `mine` and `Mine` in the examples.

    Raises:
        UserError: The name is not allowed.
    """
    is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name) and len(name) <= LONGEST
    if not is_name or name in RESERVED or keyword.iskeyword(name):
        raise UserError(
            f"{name}: a name has up to {LONGEST} characters of a-z, 0-9 and _, begins with a "
            f"letter, and is neither a keyword of Python nor one of {', '.join(RESERVED)}"
        )
    return {"mine": name, "Mine": "".join(part.capitalize() for part in name.split("_"))}


def list_routings(checkout: Path, sweep: str) -> list[str]:
    """Return the routings that a new sweep compares.

    They are `uniform` and `dynamic`. A routing with the name of the sweep, and one called `mine`,
    are added if `conf/routing` has them.
    """
    own = (name for name in (sweep, "mine") if (checkout / f"conf/routing/{name}.yaml").is_file())
    return list(dict.fromkeys(("uniform", "dynamic", *own)))


def import_data(target: Path, parsed: argparse.Namespace) -> dict[str, str]:
    """Write the file of a new data set, print its content, and return words for the examples.

    Args:
        target: The .npz file to write.
        parsed: The options of the command.

    Raises:
        UserError: There is no file, or it cannot be imported.
    """
    from capsweep.data import importing

    if parsed.file is None:
        raise UserError(f"new dataset: type --file PATH; {importing.TAKEN}")
    typed = {"test": parsed.test, "validation": parsed.validation}
    parts = {split: part for split, part in typed.items() if part is not None}
    data = importing.import_data(parsed.file, target, parts, parsed.size)
    splits, names = data.splits, data.class_names
    channels, height, width = splits["train"].images_NCHW.shape[1:]
    lowest = min(int(each.images_NCHW.min()) for each in splits.values())
    highest = max(int(each.images_NCHW.max()) for each in splits.values())
    print(f"images: channels {channels}, height {height}, width {width}, {lowest} to {highest}")
    print(*_describe_classes(names, splits), sep="\n")
    for text in data.left_out:
        print(f"left out: {text}")
    if (is_small := min(height, width) < SMALL) or height * width > LARGE:
        what = "are too small for most networks" if is_small else "make training slow"
        again = f"remove conf/dataset/{target.stem}.yaml and type the command again with --size"
        print(f"note: images of this size {what}; to change it, {again} {28 if is_small else 32}")
    size = target.stat().st_size / 1e6
    print(f"wrote {target.relative_to(package_files.CHECKOUT)} ({size:,.1f} MB)")
    return {
        "SHA256": data.sha256,
        "IMAGE_SHAPE": str([channels, height, width]),
        "NUM_CLASSES": str(len(names)),
        "CLASS_NAMES": json.dumps(names, ensure_ascii=False),
        "EXAMPLES": ", ".join(f"{split}: {len(each)}" for split, each in splits.items()),
    }


def _describe_classes(names: list[str], splits: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each of the first classes, with the numbers of images in each split."""
    counts = [np.bincount(each.labels_N, minlength=len(names)) for each in splits.values()]
    yield f"classes: {len(names)}; images of {', '.join(splits)}:"
    for label, name in enumerate(names[:MOST_LINES]):
        yield f"  {label} {name}: {', '.join(f'{count[label]:,}' for count in counts)}"
    if more := names[MOST_LINES:]:
        rest = ", ".join(f"{count[MOST_LINES:].sum():,}" for count in counts)
        yield f"  {len(more):,} more classes: {rest}"
    yield f"  all: {', '.join(f'{count.sum():,}' for count in counts)}"


def fill_examples(checkout: Path, kind: str, words: dict[str, str]) -> dict[Path, str]:
    """Return the texts of the new files, by path.

    Raises:
        UserError: A file exists already; the message names it.
    """
    examples = checkout / EXAMPLES / kind
    texts = {}
    for example in sorted(path for path in examples.rglob("*.*") if path.is_file()):
        path = checkout / replace_words(str(example.relative_to(examples)), words)
        for taken in (path, path.with_suffix("")):
            if taken.exists():
                name = taken.relative_to(checkout)
                raise UserError(f"{name} exists already; choose another name, or remove this file")
        texts[path] = replace_words(example.read_text(encoding="utf-8"), words)
    return texts


def replace_words(text: str, words: dict[str, str]) -> str:
    """Replace words in a text; `mine` is also replaced inside a name such as test_mine.py."""
    pattern = "|".join(rf"(?<![A-Za-z]){word}(?![a-z])" for word in words)
    return re.sub(pattern, lambda match: words[match[0]], text)

"""`capsweep new`: write the files of a new routing, loss, model, data set or sweep.

The files are copies of the examples in `docs/examples/new/KIND`, with the new name instead of
`mine`. The files of a data set also contain numbers that are read from the data.
"""

import argparse
import keyword
import os
import re
import shlex
from pathlib import Path

from capsweep.config import package_files
from capsweep.errors import UserError
from capsweep.storage.files import hash_open_file, open_plain_file, write_text

EXAMPLES = Path("docs", "examples", "new")
# Words that a command line or a YAML file does not read as a name.
RESERVED = ("false", "inf", "nan", "no", "none", "null", "off", "on", "true", "yes")
LONGEST = 24  # most characters of a name, so that lines of code stay below 100 characters
# The commands to type next, by the kind of the new files.
TRAIN = 'train ARGS="KIND=NAME debug=fast"'
COMMANDS = {
    "routing": ('test ARGS="-k NAME tests/model/routing"', TRAIN, "sweep ROUTING=NAME"),
    "loss": ("test ARGS=tests/model/test_NAME_loss.py", TRAIN, 'sweep ARGS="loss=margin,NAME"'),
    "model": ("test ARGS=tests/model/test_NAME.py", TRAIN, "sweep MODEL=NAME"),
    "dataset": (
        "plan DATASET=NAME",
        'train ARGS="dataset=NAME debug=fast places.data=FOLDER"',
        "sweep DATASET=NAME DATA_DIR=FOLDER",
    ),
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
        words |= describe_file(parsed.file, parsed.axes)
    elif parsed.file is not None or parsed.axes is not None:
        raise UserError(f"--file and --axes are only for new dataset, not for new {kind}")
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


def describe_file(path: Path | None, axes: str | None) -> dict[str, str]:
    """Print the content of a data set's file, and return replacements for words in the examples.

    Args:
        path: The .npz file; None if --file was not typed.
        axes: The order of the image axes, `chw` or `hwc`; None to infer the order from the shape.

    Raises:
        UserError: There is no file, its name is not allowed, or its arrays are not valid.
    """
    from capsweep.data.arrays import decode_arrays

    if path is None:
        cure = "type --file X.npz, a file of images and labels"
        raise UserError(f"new dataset: {cure}; see docs/how-to/add-a-data-set.md")
    if not re.fullmatch(r"[A-Za-z][\w-]*\.npz", path.name, re.ASCII):
        cure = "must be a letter, then letters, digits, _ or -, then .npz; rename the file"
        raise UserError(f"--file: {path.name} {cure}")
    with open_plain_file(path) as file:
        sha256 = hash_open_file(file)
        arrays = decode_arrays(path, file, axes)
    channels, height, width = arrays.splits["train"].images_NCHW.shape[1:]
    examples = ", ".join(f"{split}: {len(each)}" for split, each in arrays.splits.items())
    print(f"examples: {examples}; classes: {arrays.num_classes}")
    print(f"images: height {height}, width {width}, channels {channels}")
    if arrays.unused:
        print(f"arrays of {path.name} that are not used: {', '.join(arrays.unused)}")
    return {
        "FILE": path.stem,
        "FOLDER": shlex.quote(os.path.abspath(path.parent)),
        "SHA256": sha256,
        "IMAGE_SHAPE": str([channels, height, width]),
        "NUM_CLASSES": str(arrays.num_classes),
        "AXES": arrays.axes,
        "EXAMPLES": examples,
    }


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
                raise UserError(
                    f"{taken.relative_to(checkout)} exists already; choose another name"
                )
        texts[path] = replace_words(example.read_text(encoding="utf-8"), words)
    return texts


def replace_words(text: str, words: dict[str, str]) -> str:
    """Replace words in a text; `mine` is also replaced inside a name such as test_mine.py."""
    pattern = "|".join(rf"(?<![A-Za-z]){word}(?![a-z])" for word in words)
    return re.sub(pattern, lambda match: words[match[0]], text)

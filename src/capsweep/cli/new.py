"""`capsweep new`: the files of a routing, a loss, a model, a data set or a sweep of one's own.

`docs/examples/new/KIND` has them where they stand in a checkout, under the name `mine`; a file of a
data set has numbers in it too, which are read off the data.
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
# What a command line or a YAML file reads as another thing than a name.
RESERVED = ("false", "inf", "nan", "no", "none", "null", "off", "on", "true", "yes")
LONGEST = 24  # characters, so that lines stay below 100
# What to type next: test it, train it for a moment, sweep it.
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
    """Write the files, and print which they are and what to type next."""
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
        raise UserError("--file and --axes are for a data set alone")
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
    """Return what stands for `mine` in the examples. Raises UserError for what can be no name."""
    is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name) and len(name) <= LONGEST
    if not is_name or name in RESERVED or keyword.iskeyword(name):
        raise UserError(
            f"{name}: a name has up to {LONGEST} of a-z, 0-9 and _, begins with a letter, and is "
            f"neither a word of Python's nor of {', '.join(RESERVED)}"
        )
    return {"mine": name, "Mine": "".join(part.capitalize() for part in name.split("_"))}


def list_routings(checkout: Path, sweep: str) -> list[str]:
    """Return what a new sweep compares: two shipped routings, and one's own.

    That is the routing of the sweep's name, or `mine`, where `conf/routing` has it.
    """
    own = (name for name in (sweep, "mine") if (checkout / f"conf/routing/{name}.yaml").is_file())
    return list(dict.fromkeys(("uniform", "dynamic", *own)))


def describe_file(path: Path | None, axes: str | None) -> dict[str, str]:
    """Print what is in the file of a data set; return what stands for its words.

    Raises UserError for no file, a name of other letters, or other arrays.
    """
    from capsweep.data.arrays import decode_arrays

    if path is None:
        cure = "a data set is made of one; see docs/how-to/add-a-data-set.md"
        raise UserError(f"--file X.npz: {cure}")
    if not re.fullmatch(r"[A-Za-z][\w-]*\.npz", path.name, re.ASCII):
        cure = "must be a letter, then letters, digits, _, -, and .npz"
        raise UserError(f"--file: {path.name} {cure}")
    with open_plain_file(path) as file:
        sha256 = hash_open_file(file)
        arrays = decode_arrays(path, file, axes)
    channels, height, width = arrays.splits["train"].images_NCHW.shape[1:]
    examples = ", ".join(f"{split}: {len(each)}" for split, each in arrays.splits.items())
    print(f"examples: {examples}; classes: {arrays.num_classes}")
    print(f"images: height {height}, width {width}, channels {channels}")
    if arrays.unused:
        print(f"not used of {path.name}: {', '.join(arrays.unused)}")
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
    """Return what is to be written, by file. Raises UserError naming a file that is there."""
    examples = checkout / EXAMPLES / kind
    texts = {}
    for example in sorted(path for path in examples.rglob("*.*") if path.is_file()):
        path = checkout / replace_words(str(example.relative_to(examples)), words)
        for taken in (path, path.with_suffix("")):
            if taken.exists():
                raise UserError(
                    f"{taken.relative_to(checkout)} is there already; choose another name"
                )
        texts[path] = replace_words(example.read_text(encoding="utf-8"), words)
    return texts


def replace_words(text: str, words: dict[str, str]) -> str:
    """Return the text with its words replaced, `mine` also within test_mine.py."""
    pattern = "|".join(rf"(?<![A-Za-z]){word}(?![a-z])" for word in words)
    return re.sub(pattern, lambda match: words[match[0]], text)

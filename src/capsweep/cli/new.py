"""`capsweep new`: the files of a routing, a loss, a model or a data set of one's own.

`docs/examples/new/KIND` has them where they stand in a checkout, under the name `mine`; a file of a
data set has numbers in it too, which are read off the data.
"""

import argparse
import json
import keyword
import os
import re
import shlex
from pathlib import Path

from capsweep.config import package_files
from capsweep.errors import UserError
from capsweep.storage.files import hash_bytes, write_text

EXAMPLES = Path("docs", "examples", "new")
# What a command line or a YAML file reads as another thing than a name.
RESERVED = ("control", "false", "inf", "nan", "no", "none", "null", "off", "on", "true", "yes")
SMALLEST = 17  # pixels a side that the capsule networks of conf/model take
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
        words |= describe_file(parsed.file)
    elif parsed.file is not None:
        raise UserError("--file is for a data set alone")
    texts = fill_examples(checkout, kind, words)
    for path, text in texts.items():
        write_text(path, text)
        print(f"wrote {path.relative_to(checkout)}")
    if kind == "dataset":
        print("{TRAIN} + {TEST} images of {IMAGE_SHAPE}, {NUM_CLASSES} classes".format_map(words))
        if min(json.loads(words["IMAGE_SHAPE"])[1:]) < SMALLEST:
            print(
                f"they are too small for the capsule networks here: {SMALLEST} x {SMALLEST} or more"
            )
    print(f"next, in {checkout}:")
    for command in COMMANDS[kind]:
        print(f"  make {replace_words(command, {**words, 'KIND': kind, 'NAME': parsed.name})}")


def name_words(name: str) -> dict[str, str]:
    """What stands for `mine` in the examples. Raises UserError for what can be no name."""
    is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name) and len(name) <= LONGEST
    if not is_name or name in RESERVED or keyword.iskeyword(name):
        raise UserError(
            f"{name}: a name has up to {LONGEST} of a-z, 0-9 and _, begins with a letter, and is "
            f"neither a word of Python's nor of {', '.join(RESERVED)}"
        )
    return {"mine": name, "Mine": "".join(part.capitalize() for part in name.split("_"))}


def describe_file(path: Path | None) -> dict[str, str]:
    """What stands for the words of a data set. Raises UserError for no file, or other arrays."""
    from capsweep.data.arrays import decode_arrays

    if path is None:
        raise UserError(
            "--file X.npz: a data set is made of one; see docs/how-to/add-a-data-set.md"
        )
    if not re.fullmatch(r"[A-Za-z][\w-]*\.npz", path.name, re.ASCII):
        raise UserError(
            f"--file: {path.name} must be a letter, then letters, digits, _, -, and .npz"
        )
    data = path.read_bytes()
    train, test = (decode_arrays(path, data)[split] for split in ("train", "test"))
    shapes = [list(split.images_NCHW.shape[1:]) for split in (train, test)]
    if shapes[0] != shapes[1]:
        raise UserError(f"{path}: images of train are {shapes[0]}, those of test {shapes[1]}")
    classes = max(*train.labels_N.tolist(), *test.labels_N.tolist()) + 1
    if classes < 2:
        raise UserError(f"{path}: every label is 0; a data set has two classes or more")
    if unseen := {*range(classes)} - {*train.labels_N.tolist()}:
        raise UserError(f"{path}: no training example of class {min(unseen)}; classes count from 0")
    return {
        "FILE": path.stem,
        "FOLDER": shlex.quote(os.path.abspath(path.parent)),
        "SHA256": hash_bytes(data),
        "IMAGE_SHAPE": str(shapes[0]),
        "NUM_CLASSES": str(classes),
        "TRAIN": str(len(train)),
        "TEST": str(len(test)),
    }


def fill_examples(checkout: Path, kind: str, words: dict[str, str]) -> dict[Path, str]:
    """What is to be written into which files. Raises UserError naming one that is there already."""
    examples = checkout / EXAMPLES / kind
    texts = {}
    for example in sorted(path for path in examples.rglob("*.*") if path.is_file()):
        path = checkout / replace_words(str(example.relative_to(examples)), words)
        for taken in (path, path.with_suffix("")):
            if taken.exists():
                raise UserError(
                    f"{taken.relative_to(checkout)} is there already; choose another name"
                )
        for module in path.parent.glob("*.py"):
            if path.stem in compile(module.read_text(encoding="utf-8"), module, "exec").co_names:
                raise UserError(
                    f"{path.stem}: {module.relative_to(checkout)} uses this name; choose another"
                )
        texts[path] = replace_words(example.read_text(encoding="utf-8"), words)
    return texts


def replace_words(text: str, words: dict[str, str]) -> str:
    """The text, with what stands for each word in its place; `mine` also within test_mine.py."""
    pattern = "|".join(rf"(?<![A-Za-z]){word}(?![a-z])" for word in words)
    return re.sub(pattern, lambda match: words[match[0]], text)

"""Decoded images kept in the user's cache, so that decompressing happens once, not in every trial.

One .npz per data set and declared hashes in `$XDG_CACHE_HOME/capsweep`, or `~/.cache/capsweep`, of
this node: data folders are often shared or read-only. It holds what the verified official files
gave, has a CRC of every array, and may be deleted at any time.
"""

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch

from capsweep.data.images import LabelledImages, Splits
from capsweep.storage.files import hold_lock, user_cache_folder, write_atomically

FORMAT = 1  # to be raised when a reader decodes the same files to other arrays

Decoded = Mapping[str, LabelledImages]

_said: set[str] = set()


class DecodedReader(ABC):
    """A reader of official files that are decoded once: what it says, and not how they are kept."""

    name: str  # of the data set, in the cache

    def check(self, folder: str) -> None:
        """Find, verify and decode all files, once. Raises DataError naming the file."""
        self._decoded(folder)

    def read(self, folder: str) -> Splits:
        """The verified data set. Raises DataError naming the file and the cure."""
        decoded = self._decoded(folder)
        return Splits(train=decoded["train"], test=decoded["test"])

    @abstractmethod
    def declare_hashes(self) -> Mapping[str, object]:
        """All hashes that the files are verified by."""

    @abstractmethod
    def decode(self, folder: str) -> Decoded:
        """The splits "train" and "test" from the official files. Raises DataError."""

    def _decoded(self, folder: str) -> Decoded:
        return decoded_once(self.name, self.declare_hashes(), lambda: self.decode(folder))


def decoded_once(
    name: str, declared: Mapping[str, object], decode: Callable[[], Decoded]
) -> Decoded:
    """What `decode` returns, from the cache where it is there and whole.

    name: of the data set. declared: all of its hashes, which identify the images: what was once
    decoded is found again without the official files. Several processes at once: one decodes, the
    others wait. Where the cache cannot be written, standard error says so and `decode` is called.
    Raises what `decode` raises.
    """
    identity = json.dumps({"format": FORMAT, "name": name, "declared": declared}, sort_keys=True)
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    try:
        path = user_cache_folder() / f"{name}-{key}.npz"
    except RuntimeError:
        _say_once("~/.cache/capsweep", "no home; set HOME or XDG_CACHE_HOME")
        return decode()
    kept = _read(path, identity, says_damage=False)
    if kept is not None:
        return kept
    with _locked(path) as is_locked:
        kept = _read(path, identity, says_damage=True)  # another may have made it meanwhile
        if kept is not None:
            return kept
        decoded = decode()
        if is_locked:
            _write(path, identity, decoded)
        return decoded


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a cache file; False where there can be none. A dead process holds none."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(path.with_suffix(".lock")))
        except OSError as error:
            _say_once(path.parent, error.strerror or error)
            yield False
            return
        yield True


def _write(path: Path, identity: str, decoded: Decoded) -> None:
    """Under the lock, so temporary files of others are those of killed processes."""
    arrays = {"identity": np.array(identity)}
    for split, examples in decoded.items():
        arrays[f"{split}_images"] = examples.images_NCHW.numpy()
        arrays[f"{split}_labels"] = examples.labels_N.numpy()
    try:
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            left.unlink(missing_ok=True)
        write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
    except OSError as error:
        _say_once(path.parent, error.strerror or error)


def _read(path: Path, identity: str, says_damage: bool) -> Decoded | None:
    """The kept images; None where there are none, or where they are damaged."""
    try:
        raw = path.open("rb")
    except OSError:
        return None  # none, or none for us: then writing it says why
    try:
        with raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}  # whole: CRCs are checked
        if str(arrays.pop("identity")) != identity:
            raise ValueError("made for other files")
        splits = {name.removesuffix("_labels") for name in arrays if name.endswith("_labels")}
        return {split: _examples(arrays, split) for split in splits}
    except Exception as error:  # a damaged zip file can make numpy and zipfile raise anything
        if says_damage:
            print(f"{path}: damaged ({error}); decoding anew", file=sys.stderr, flush=True)
        return None


def _examples(arrays: Mapping[str, np.ndarray], split: str) -> LabelledImages:
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    if images.dtype != np.uint8 or labels.dtype != np.int64 or len(images) != len(labels):
        raise ValueError(f"{split}: {images.dtype} {images.shape}, {labels.dtype} {labels.shape}")
    return LabelledImages(torch.from_numpy(images), torch.from_numpy(labels))


def _say_once(place: Path | str, reason: object) -> None:
    if str(place) not in _said:
        _said.add(str(place))
        text = f"{place}: no cache of decoded images ({reason}); decoding in every run"
        print(text, file=sys.stderr, flush=True)

"""Labelled images: in memory, in splits, and decoded once on a node.

Decoded images are kept in `$XDG_CACHE_HOME/capsweep`, or `~/.cache/capsweep`, one .npz per data set
and declared hashes: data folders are often shared or read-only. It holds what the verified official
files gave with the digests of its splits, and may be deleted at any time.

Shape letters: N examples, C H W image.
"""

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import ConfigError
from capsweep.runtime import terminal
from capsweep.storage.files import (
    hash_bytes,
    hold_lock,
    remove_temporaries,
    user_cache_folder,
    write_atomically,
)
from capsweep.storage.npz import open_npz

FORMAT = 2  # to be raised when a reader decodes the same files to other arrays
DIGESTS = "digests"  # of the splits in a cache file, as JSON
_verified: set[tuple[str | int, ...]] = set()  # cache files of this process: path, inode and state
VALIDATION_SEED = 20171026  # which training examples are held out is part of the data set


@dataclass(frozen=True)
class LabelledImages:
    """uint8 images [N, C, H, W] and int64 labels [N].

    known_digest: the digest, where this process has computed it before; None: it is computed.
    """

    images_NCHW: Tensor
    labels_N: Tensor
    known_digest: str | None = None

    def __len__(self) -> int:
        return len(self.labels_N)

    @cached_property
    def digest(self) -> str:
        """The sha256 of images and labels, each with its type and shape, on the processor."""
        if self.known_digest is not None:
            return self.known_digest
        digest = hashlib.sha256()
        for array in (self.images_NCHW.numpy(), self.labels_N.numpy().astype("<i8", copy=False)):
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def select(self, index_N: Tensor) -> "LabelledImages":
        """The examples at `index_N`, in that order."""
        return LabelledImages(self.images_NCHW[index_N], self.labels_N[index_N])

    def to(self, device: torch.device) -> "LabelledImages":
        """The same examples on `device`."""
        return LabelledImages(self.images_NCHW.to(device), self.labels_N.to(device))


Decoded = Mapping[str, LabelledImages]  # by split


def label_images(images_NCHW: np.ndarray, labels_N: np.ndarray, classes: int) -> LabelledImages:
    """Arrays of a file as examples. Raises ValueError unless they are bytes and their classes."""
    labels = labels_N.astype(np.int64)
    if images_NCHW.dtype != np.uint8 or len(images_NCHW) != len(labels) or len(labels) == 0:
        raise ValueError(f"{images_NCHW.dtype} {images_NCHW.shape} with {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes or (labels != labels_N).any():
        raise ValueError(f"labels {labels_N.min()}..{labels_N.max()}, not 0..{classes - 1}")
    images = np.ascontiguousarray(images_NCHW)
    return LabelledImages(torch.from_numpy(images), torch.from_numpy(labels))


@dataclass(frozen=True)
class Splits:
    """A data set as its publisher splits it.

    validation: where the protocol of a data set names these examples; None: held out of train.
    parts: digests of what else examples are composed of, by name.
    """

    train: LabelledImages
    test: LabelledImages
    validation: LabelledImages | None = None
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each split that has examples, by its name, and those of `parts`."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        own = {name: each.digest for name, each in splits.items() if each is not None and len(each)}
        return {**own, **self.parts}


class Reader(Protocol):
    """Reads one data set from its official files."""

    def check(self, folder: str) -> None:
        """Prove that `read` succeeds. Raises DataError naming the file and the cure."""
        self.read(folder)

    @abstractmethod
    def read(self, folder: str) -> Splits:
        """Return the verified data set. Raises DataError naming the file and the cure."""


class TestReader(Protocol):
    """Other test images than those of the data set itself: its files, or what is made of them."""

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """The images to be tested on, given the data set's own. Raises DataError."""
        ...


@dataclass(frozen=True)
class TestedElsewhere(Reader):
    """A reader whose training images are of one data set and whose test images of another."""

    reader: Reader
    test: TestReader

    def read(self, folder: str) -> Splits:
        """Both, verified."""
        splits = self.reader.read(folder)
        return replace(splits, test=self.test.read(folder, splits.test))


def trained_and_validated(splits: Splits, held_out: int) -> tuple[LabelledImages, LabelledImages]:
    """What is trained on, and what validates it: the data set's own, or so many held out."""
    if splits.validation is None:
        return hold_out(splits.train, held_out, VALIDATION_SEED)
    return splits.train, splits.validation


def hold_out(
    examples: LabelledImages, count: int, seed: int
) -> tuple[LabelledImages, LabelledImages]:
    """Split off `count` examples, the classes in the proportions of the whole.

    Returns (kept, held out), each in the order of the original; a function of (labels, count,
    seed). Raises ConfigError when `count` leaves nothing.
    """
    if count >= len(examples):
        raise ConfigError(f"dataset.validation must be < {len(examples)} examples, got {count}")
    if count == 0:  # as it mostly is: all images would be copied
        return examples, examples.select(torch.arange(0))
    held = stratified_sample(examples.labels_N.numpy(), count, seed)
    mask = np.zeros(len(examples), dtype=bool)
    mask[held] = True
    return (
        examples.select(torch.from_numpy(np.flatnonzero(~mask))),
        examples.select(torch.from_numpy(np.flatnonzero(mask))),
    )


def stratified_sample(labels_N: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Indices of `count` examples, the classes in the proportions of the whole, in random order.

    Example r of a class of n is ranked (r + 1/2) / n; the sample is the lowest ranks of all
    classes.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels_N))
    rank = np.empty(len(labels_N))
    for label in np.unique(labels_N):
        members = order[labels_N[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)
    tie_break = generator.permutation(len(labels_N))
    return np.lexsort((tie_break, rank))[:count]


class DecodedReader(Reader):
    """A reader of official files that are decoded once, not in every trial.

    name: of the data set, in the cache.
    """

    name: str

    @property
    @abstractmethod
    def declared_hashes(self) -> Mapping[str, object]:
        """All hashes that the files are verified by."""

    def read(self, folder: str) -> Splits:
        """Return the verified data set. Raises DataError naming the file and the cure."""
        images = decode_once(self.name, self.declared_hashes, lambda: self.decode_files(folder))
        return Splits(images["train"], images["test"], images.get("validation"))

    @abstractmethod
    def decode_files(self, folder: str) -> Decoded:
        """Return the splits "train" and "test", and "validation" where the files name it. Raises
        DataError.
        """


def decode_once(
    name: str, declared: Mapping[str, object], decode: Callable[[], Decoded]
) -> Decoded:
    """What `decode` returns, from the user's cache of this node where it is there and whole.

    name: of the data set. declared: all of its hashes, which identify the images: what was once
    decoded is found again without the official files. Several processes at once: one decodes, the
    others wait. Raises what `decode` raises.
    """
    identity = json.dumps({"format": FORMAT, "name": name, "declared": declared}, sort_keys=True)
    try:
        path = user_cache_folder() / f"{name}-{hash_bytes(identity.encode())[:16]}.npz"
    except RuntimeError:  # there is no home
        return decode()
    images = _load_decoded(path, identity)
    if images is not None:
        return images
    with hold_lock(path.with_suffix(".lock")) as is_held:
        images = _load_decoded(path, identity)  # another process made it meanwhile
        if images is None:
            images = decode()
            try:
                if is_held:
                    remove_temporaries(path)
                _save_decoded(path, identity, images)
            except OSError as error:
                reason = error.strerror or error
                text = f"{path.parent}: no cache of images ({reason}); each run decodes them"
                terminal.print_once(text)
        return images


def _save_decoded(path: Path, identity: str, images: Decoded) -> None:
    digests = {split: examples.digest for split, examples in images.items()}
    arrays = {"identity": np.array(identity), DIGESTS: np.array(json.dumps(digests))}
    for split, examples in images.items():
        arrays[f"{split}_images"] = examples.images_NCHW.numpy()
        arrays[f"{split}_labels"] = examples.labels_N.numpy()
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def _load_decoded(path: Path, identity: str) -> Decoded | None:
    """Return the images of a cache file; None where there is none. A line says why one is not used.

    A file is hashed once in a process, and again when its size or a time of it has changed.
    """
    try:
        with path.open("rb") as raw, open_npz(raw) as file:
            state = os.fstat(raw.fileno())
            arrays = {name: file[name] for name in file.files}
        if str(arrays.pop("identity")) != identity:
            raise ValueError("it is of another data set")
        digests = json.loads(str(arrays.pop(DIGESTS)))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        key = (str(path), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        images = {
            split: LabelledImages(
                tensors.pop(f"{split}_images"),
                tensors.pop(f"{split}_labels"),
                digest if key in _verified else None,
            )
            for split, digest in digests.items()
        }
        if tensors or digests != {split: each.digest for split, each in images.items()}:
            raise ValueError("its images or labels are not those that were decoded")
        _verified.add(key)
        return images
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged zip file can make numpy and zipfile raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        terminal.print_once(f"{path}: not used ({reason}); the official files are decoded again")
        return None

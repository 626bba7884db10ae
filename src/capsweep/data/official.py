"""Readers of official files, which are verified, and decoded once on a node.

Decoded images are kept in `$XDG_CACHE_HOME/capsweep`,
or `~/.cache/capsweep`, one .npz per data set and declared hashes: data folders are often shared or
read-only. It holds what the verified official files gave with the digests of its splits, and may be
deleted at any time.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from capsweep.data.images import Decoded, LabelledImages, Reader, Splits
from capsweep.runtime import terminal
from capsweep.storage.checked import open_npz
from capsweep.storage.files import (
    hash_bytes,
    lock_file,
    user_cache_folder,
    write_atomically,
)
from capsweep.storage.official_files import (
    UNKNOWN,
    Digest,
    OfficialFiles,
    read_content,
)

FORMAT = 2  # to be raised when a reader decodes the same files to other arrays
DIGESTS = "digests"  # of the splits in a cache file, as JSON


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
    with lock_file(path):
        images = _load_decoded(path, identity)  # another process made it meanwhile
        if images is None:
            images = decode()
            try:
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
    """Return the images of a cache file; None where there is none, or with a line that says why it
    is not used.
    """
    try:
        with path.open("rb") as raw, open_npz(raw) as file:
            arrays = {name: file[name] for name in file.files}
        if str(arrays.pop("identity")) != identity:
            raise ValueError("it is of another data set")
        digests = json.loads(str(arrays.pop(DIGESTS)))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        images = {
            split: LabelledImages(tensors[f"{split}_images"], tensors[f"{split}_labels"])
            for split in digests
        }
        if digests != {split: each.digest for split, each in images.items()}:
            raise ValueError("its images or labels are not those that were decoded")
        return images
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged zip file can make numpy and zipfile raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        terminal.print_once(f"{path}: not used ({reason}); the official files are decoded again")
        return None


class OfficialReader(Reader):
    """A reader of official files that are decoded once, not in every trial.

    name: of the data set, in the cache; publisher: see `OfficialFiles`. sha256: of the official
    files, by name without ending: the fingerprint; sha256_plain: of the same files decompressed,
    where known. A hash may be the text `unknown`. folders: where to look below the data folder.
    """

    name: str
    publisher: str

    def __init__(
        self,
        sha256: Mapping[str, str],
        folders: Sequence[str],
        sha256_plain: Mapping[str, str] | None = None,
    ) -> None:
        self.sha256, self.sha256_plain = dict(sha256), dict(sha256_plain or {})
        self.files = OfficialFiles(folders, self.publisher)

    def read(self, folder: str) -> Splits:
        """Return the verified data set. Raises DataError naming the file and the cure."""
        declared = {"sha256": self.sha256, "sha256_plain": self.sha256_plain}
        images = decode_once(self.name, declared, lambda: self.decode_files(folder))
        return Splits(images["train"], images["test"], images.get("validation"))

    @abstractmethod
    def decode_files(self, folder: str) -> Decoded:
        """Return the splits "train" and "test", and "validation" where the files name it. Raises
        DataError.
        """

    def read_verified(
        self, folder: str, names: Iterable[str], *endings: str
    ) -> dict[str, tuple[Path, bytes]]:
        """Return paths and verified bytes by name without ending, which is one of `endings`.

        Raises DataError naming the file and the cure.
        """
        allowed = {name: [f"{name}{ending}" for ending in endings] for name in names}
        paths = self.files.find_all(folder, allowed)
        contents = {name: (path, self.read_file(path)) for name, path in paths.items()}
        self.files.check_digests(*(self._make_digest(n, *file) for n, file in contents.items()))
        return contents

    def read_file(self, path: Path) -> bytes:
        """Return the bytes of a file that a hash is declared of."""
        return read_content(path)

    def _make_digest(self, name: str, path: Path, data: bytes) -> Digest:
        """Return the hash of a file, and that which it is verified by.

        Of a plain file that is one of sha256_plain; what is not hashed into the signature verifies
        only what the fingerprint identifies, so that an unknown fingerprint is still asked for.
        """
        found, declared = hash_bytes(data), self.sha256.get(name)
        is_plain = path.suffix != ".gz" and name in self.sha256_plain
        group = "sha256_plain" if is_plain and declared not in (UNKNOWN, found) else "sha256"
        hashes: Mapping[str, str] = getattr(self, group)
        key = f"dataset.reader.{group}.{name}"
        return Digest(path, found, hashes.get(name, UNKNOWN), key)

"""Base class for readers of official files, and the cache of decoded images.

Files are verified by their sha256 and decoded once per node. Decoded images are kept in
`$XDG_CACHE_HOME/capsweep` or `~/.cache/capsweep`, since data folders are often shared or read-only.
A cache file is an .npz file with the images, labels and digests of the splits of one data set. Its
name depends on the declared hashes of the data set. Cache files may be deleted at any time.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from capsweep.data.images import Decoded, LabelledImages, Reader, Splits
from capsweep.runtime import terminal
from capsweep.storage.checked import open_npz
from capsweep.storage.files import hash_bytes, lock_file, user_cache_folder, write_atomically
from capsweep.storage.official_files import UNKNOWN, Digest, OfficialFiles, read_content

FORMAT = 2  # increase it when a reader decodes the same files to different arrays than before
DIGESTS = "digests"  # name of the array with the digests of the splits, as JSON


def decode_once(
    name: str, declared: Mapping[str, object], decode: Callable[[], Decoded]
) -> Decoded:
    """Return the decoded images of a data set, from the user's cache if an intact copy is there.

    Otherwise the images are decoded and stored in the cache. If several processes need the images
    at the same time, one process decodes and the others wait.

    Args:
        name: Name of the data set.
        declared: All declared hashes of the data set, which identify its images. The official files
            are not needed once the images are in the cache.
        decode: Reads, verifies and decodes the files.

    Raises:
        Exception: Any error of `decode`, such as a DataError.
    """
    identity = json.dumps({"format": FORMAT, "name": name, "declared": declared}, sort_keys=True)
    try:
        path = user_cache_folder() / f"{name}-{hash_bytes(identity.encode())[:16]}.npz"
    except RuntimeError:  # there is no home folder
        return decode()
    if images := _load_decoded(path, identity):
        return images
    with lock_file(path):
        if images := _load_decoded(path, identity):  # another process may have stored the images
            return images
        images = decode()
        try:
            digests = json.dumps({split: each.digest for split, each in images.items()})
            others = {"identity": np.array(identity), DIGESTS: np.array(digests)}
            write_examples(path, images, **others)
        except OSError as error:
            terminal.print_once(
                f"{path.parent}: images are not cached ({error.strerror or error}); each run "
                "decodes them"
            )
        return images


def write_examples(path: Path, examples: Decoded, **others: np.ndarray) -> None:
    """Write an .npz file atomically, with the arrays NAME_images and NAME_labels.

    Args:
        path: The file.
        examples: The examples by NAME.
        **others: More arrays of the file.

    Raises:
        OSError: If the file cannot be written.
    """
    arrays = {f"{name}_images": each.images_NCHW.numpy() for name, each in examples.items()}
    arrays |= {f"{name}_labels": each.labels_N.numpy() for name, each in examples.items()}
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays, **others))


def _load_decoded(path: Path, identity: str) -> Decoded | None:
    """Load the images of a cache file, or return None if there is no usable file.

    If the file exists but cannot be used, a line with the reason is printed.
    """
    try:
        with path.open("rb") as raw, open_npz(raw) as file:
            arrays = {name: file[name] for name in file.files}
        if str(arrays.pop("identity")) != identity:
            raise ValueError("it belongs to another data set")
        digests = json.loads(str(arrays.pop(DIGESTS)))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        images = {
            split: LabelledImages(tensors[f"{split}_images"], tensors[f"{split}_labels"])
            for split in digests
        }
        if digests != {split: each.digest for split, each in images.items()}:
            raise ValueError("its images or labels were altered")
        return images
    except FileNotFoundError:
        return None
    except Exception as error:  # for a damaged file, numpy and zipfile can raise any error
        reason = " ".join(str(error).split()) or type(error).__name__
        terminal.print_once(f"{path}: not used ({reason}); the official files are decoded again")
        return None


@dataclass
class OfficialReader(Reader):
    """A base class for readers of official files; the files are decoded only once per node.

    Attributes:
        sha256: The sha256 of each official file, by name of the file without ending. These hashes
            are the fingerprint of the data set. If a hash is the text "unknown", reading raises a
            DataError that says which hash to declare.
        folders: Where to look for the files: names of folders below the data folder.
        sha256_plain: The known sha256 of files that are stored decompressed, by the same names.
        name: Name of the data set; the names of its cache files begin with it.
        publisher: Page or URL from which a user can download the files, for messages.
    """

    sha256: Mapping[str, str]
    folders: Sequence[str]
    sha256_plain: Mapping[str, str] = field(default_factory=dict)
    name: str = field(init=False)
    publisher: str = field(init=False)

    def __post_init__(self) -> None:
        self.files = OfficialFiles(self.folders, self.publisher)

    def read(self, folder: str) -> Splits:
        """Read and verify the data set, or load it from the user's cache; see `Reader.read`.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Raises:
            DataError: If a file is missing, if its hash is not the declared one, or if it cannot be
                decoded.
            StoreError: If the object store does not answer.
        """
        declared = {"sha256": self.sha256, "sha256_plain": self.sha256_plain}
        images = decode_once(self.name, declared, lambda: self.decode_files(folder))
        return Splits(images["train"], images["test"], images.get("validation"))

    @abstractmethod
    def decode_files(self, folder: str) -> Decoded:
        """Read, verify and decode the official files.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Returns:
            The examples of "train", "test" and, if the data set defines this split, "validation".

        Raises:
            DataError: If a file is missing, if its hash is not the declared one, or if it cannot be
                decoded.
            StoreError: If the object store does not answer.
        """

    def read_verified(
        self, folder: str, names: Iterable[str], *endings: str
    ) -> dict[str, tuple[Path, bytes]]:
        """Read files, and verify that they have their declared hashes.

        Args:
            folder: The data folder, a path or the URL of an object store.
            names: Names of the files, without endings.
            *endings: Endings that a file may have, in order of preference.

        Returns:
            The path and the bytes of each file. The keys are the given names.

        Raises:
            DataError: If a file is missing or cannot be read, or if its hash is not the declared
                one.
            StoreError: If the object store does not answer.
        """
        allowed = {name: [f"{name}{ending}" for ending in endings] for name in names}
        paths = self.files.find_all(folder, allowed)
        contents = {name: (path, self.read_file(path)) for name, path in paths.items()}
        self.files.check_digests(*(self._make_digest(n, *file) for n, file in contents.items()))
        return contents

    def read_file(self, path: Path) -> bytes:
        """Read the bytes of a file; later they are hashed and decoded.

        A subclass may override this method to decompress the bytes.

        Args:
            path: The file.

        Raises:
            DataError: If the file cannot be read.
        """
        return read_content(path)

    def _make_digest(self, name: str, path: Path, data: bytes) -> Digest:
        """Hash a file, and choose the declared hash to compare with the computed hash.

        If a decompressed file has a hash in `sha256_plain`, the file is compared with this hash,
        except in two cases:

        - The computed hash is that in `sha256`. Then the file is accepted.
        - The hash in `sha256` is "unknown". Then an error asks the user to declare the hash in
          `sha256`, because only `sha256` is part of the signature.

        All other files are compared with their hash in `sha256`.
        """
        computed, declared = hash_bytes(data), self.sha256.get(name)
        is_plain = path.suffix != ".gz" and name in self.sha256_plain
        group = "sha256_plain" if is_plain and declared not in (UNKNOWN, computed) else "sha256"
        hashes: Mapping[str, str] = getattr(self, group)
        key = f"dataset.reader.{group}.{name}"
        return Digest(path, computed, hashes.get(name, UNKNOWN), key)

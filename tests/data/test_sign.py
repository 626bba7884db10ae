"""Numbers whose class is their sign: balanced, symmetric, and shown as x and -x to the bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsweep.config import compose
from capsweep.data.images import LabelledImages, Reader, Splits
from capsweep.training import build

ReaderOf = Callable[..., Reader]
ALL = torch.arange(256)


@pytest.fixture
def splits(reader_of: ReaderOf) -> Splits:
    return reader_of("dataset=sign").read("")


def list_bytes(examples: LabelledImages) -> Tensor:
    return examples.images_NCHW.flatten().long()


def test_every_byte_is_in_one_split(splits: Splits) -> None:
    assert (len(splits.train), len(splits.test)) == (192, 64)
    bytes_N = torch.cat([list_bytes(splits.train), list_bytes(splits.test)])
    assert torch.equal(bytes_N.sort().values, ALL)
    assert splits.validation is None


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_is_symmetric_and_balanced(splits: Splits, split: str) -> None:
    examples = getattr(splits, split)
    bytes_N = list_bytes(examples)
    assert torch.equal(255 - bytes_N.flip(0), bytes_N)
    assert torch.equal(examples.labels_N, (bytes_N >= 128).long())
    assert 2 * int(examples.labels_N.sum()) == len(examples)


def test_other_numbers_than_the_declared_ones_are_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Callable[[Reader, Path, str], None]
) -> None:
    reader = reader_of("dataset=sign", f"dataset.reader.sha256={'0' * 64}")
    refuses(reader, tmp_path, r"sha256 [0-9a-f]{64}, dataset\.reader\.sha256 declares 0{64}")


def test_a_tested_number_and_its_negative_differ_in_their_sign_bit_alone() -> None:
    config = compose.cell(["experiment=sign"]).config
    test = build.load_splits(config, "", torch.device("cpu"))["test"]
    batch = test.evaluation_batch(slice(0, 64))
    x_B = batch.images_BCHW.flatten()
    assert torch.equal(x_B.flip(0), -x_B)
    assert -1 <= x_B.min() < x_B.max() <= 1
    assert x_B.all()
    assert torch.equal(batch.labels, (x_B > 0).long())

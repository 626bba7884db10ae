"""The job `affnist_like`: what is tested on comes first, then more copies of the same sequence."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.cli.data import prepare_job
from capsweep.config import compose
from capsweep.training import build
from data_prep.affnist_like import AffnistLike

DIGITS = ("dataset.source=digits",)
COUNT, COPIES = 360, 3


@cache
def job(*overrides: str, copies: int = COPIES) -> AffnistLike:
    """Of the embedded digits."""
    made = prepare_job("affnist_like", [*DIGITS, *overrides], copies)
    assert isinstance(made, AffnistLike)
    return made


@pytest.mark.parametrize("override", ["seed=0", "seed=1", "rotation=5.0"])
def test_the_first_copy_is_what_the_data_set_tests_on_byte_for_byte(override: str) -> None:
    overrides = (f"dataset.test.{override}",)
    config = compose.cell(
        ["dataset=affnist_like", "dataset.validation=100", *DIGITS, *overrides]
    ).config
    test = build.build_reader(config).read("").test
    made = job(*overrides).build_maker("test")(0, COUNT)
    assert made["images"].tobytes() == test.images_NCHW.numpy().tobytes()
    assert torch.equal(torch.from_numpy(made["labels"]).long(), test.labels_N)


@cache
def whole() -> dict[str, np.ndarray]:
    """All copies, made at once."""
    return dict(job().build_maker("test")(0, COUNT * COPIES))


@given(start=st.integers(0, COUNT * COPIES), count=st.integers(1, 130))
@at_most_examples(15)
def test_any_stretch_is_that_of_the_sequence(start: int, count: int) -> None:
    start = min(start, COUNT * COPIES - count)
    made = job().build_maker("test")(start, start + count)
    for name, array in whole().items():
        assert made[name].tobytes() == array[start : start + count].tobytes()


def test_further_copies_are_the_same_digits_transformed_otherwise() -> None:
    made = whole()
    copies = [slice(n * COUNT, (n + 1) * COUNT) for n in range(COPIES)]
    for copy in copies:
        np.testing.assert_array_equal(made["indices"][copy], np.arange(COUNT))
        np.testing.assert_array_equal(made["labels"][copy], job().digits[1])
    for name in ("images", "matrix", "shift"):
        first, second, third = (made[name][copy].reshape(COUNT, -1) for copy in copies)
        for one, other in ((first, second), (first, third), (second, third)):
            assert (one != other).any(axis=1).all()


def test_its_fields_are_those_of_what_it_makes() -> None:
    made = job().build_maker("test")(COUNT - 1, COUNT + 1)
    fields = {name: (str(array.dtype), array.shape[1:]) for name, array in made.items()}
    assert job().list_fields() == fields


def test_every_setting_tells_one_data_set_from_another() -> None:
    known = {job().content.fingerprint, job(copies=2).content.fingerprint}
    for override in ("seed=1", "rotation=5.0", "shear=0.1", "scale=[0.9,1.1]"):
        known.add(job(f"dataset.test.{override}").content.fingerprint)
    known.add(job("dataset.batches.canvas=44").content.fingerprint)
    assert len(known) == 7
    assert job().content.splits == {"test": COUNT * COPIES}

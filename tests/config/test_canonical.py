"""Settings that mean the same run have one canonical form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.config import compose, validation
from capsweep.config.cell import Cell

SIZES = st.lists(st.integers(1, 2000), min_size=1, max_size=4)


@given(hidden=SIZES)
@at_most_examples(30)
def test_without_reconstruction_the_decoder_decides_nothing(hidden: list[int]) -> None:
    off = compose.cell(["loss.reconstruction.weight=0"])
    sized = compose.cell(["loss.reconstruction.weight=0", f"model.decoder.hidden={hidden}"])
    assert sized.config == off.config
    assert sized.signature == off.signature
    assert "decoder" not in off.config["model"]


def test_with_reconstruction_the_decoder_decides() -> None:
    assert compose.cell(["model.decoder.hidden=[16]"]).signature != compose.cell([]).signature


@pytest.mark.parametrize("weight", ["0", "0.0", "0e3", "-0.0"])
def test_no_reconstruction_has_one_spelling(weight: str) -> None:
    cell = compose.cell([f"loss.reconstruction.weight={weight}"])
    assert cell.signature == compose.cell(["loss.reconstruction.weight=0"]).signature


@pytest.mark.parametrize(
    ("key", "whole"), [("model.initial.bias", "0"), ("model.initial.bias", "1")]
)
def test_a_whole_number_is_real_also_where_the_default_is_null(key: str, whole: str) -> None:
    cells = [compose.cell([f"{key}={text}"]) for text in (whole, f"{whole}.0", f"{whole}e0")]
    assert len({cell.signature for cell in cells}) == 1
    assert cells[0].signature != compose.cell([]).signature


def test_all_and_none_right_are_accuracies() -> None:
    for text in ("0", "1"):
        assert compose.cell([f"stop_accuracy={text}"]).config["stop_accuracy"] == float(text)


@given(num_iters=st.integers(1, 100), bias=st.booleans())
@at_most_examples(30)
def test_a_network_that_does_not_route_has_no_routing(num_iters: int, bias: bool) -> None:
    plain = compose.cell(["model=cnn_small"])
    set_anyway = [f"routing.num_iters={num_iters}", f"routing.bias={bias}"]
    assert compose.cell(["model=cnn_small", *set_anyway]).signature == plain.signature
    assert plain.config["routing"] is None
    assert plain.science["routing"] is None


def test_a_network_that_routes_is_told_apart_by_its_routing() -> None:
    cells = [compose.cell([f"routing.num_iters={count}"]) for count in (1, 2, 3)]
    assert len({cell.signature for cell in cells}) == 3
    assert all("routing" not in cell.config["model"] for cell in cells)


@pytest.mark.parametrize("chosen", [[], ["loss.reconstruction.weight=0"]])
def test_the_canonical_form_leaves_its_argument_as_it_was(chosen: list[str]) -> None:
    cell: Cell = compose.cell(chosen)
    config = {**cell.config, "model": {**cell.config["model"], "routing": {}, "decoder": {}}}
    validation.make_canonical(config)
    assert config["model"]["routing"] == {}
    assert config["model"]["decoder"] == {}

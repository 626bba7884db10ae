"""One grammar for the command line, make variables and sweep files, in both directions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.config import overrides
from capsweep.errors import ConfigError

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
TRICKY = st.lists(st.sampled_from("'\\ \",a1é漢=[]{}()$:#-+~@\n\t.%*|&_"), max_size=6).map("".join)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALAR = ANY_TEXT | TRICKY | NUMBER
SCALAR = SCALAR | st.booleans() | st.none()
VALUE = SCALAR | st.lists(SCALAR, max_size=4) | st.lists(st.lists(SCALAR, max_size=2), max_size=2)


def back(value: Any) -> Any:
    """What is read of a value that was written."""
    override = overrides.parse(overrides.render("some.key", value))
    assert override.key == "some.key"
    assert len(override.values) == 1
    return override.values[0]


def kinds(value: Any) -> Any:
    """The type of a value, lists taken apart: 1, 1.0 and true are equal but not the same."""
    return [kinds(item) for item in value] if isinstance(value, list) else type(value)


@given(value=VALUE)
@at_most_examples(300)
def test_a_written_value_is_read_back_with_its_type(value: Any) -> None:
    assert back(value) == value
    assert kinds(back(value)) == kinds(value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "NULL", "true", "False", "nan", "inf", "-inf", "None"),
        *("1", "-1", "1e3", "1_0", "[1]", "{a:1}", "${seed}", "range(1,3)", "a=b"),
        *("a,b", "a b", " a", "it's", 'say "x"', "''", "é 漢字", "#", "-", ".", ".."),
        *("/data/mnist", "../data", "~/data", "C:/data", ".5", ".5e3"),
    ],
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert back(text) == text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,3", (1, 3)),
        ("a=1", (1,)),
        ("a=x,'y z',0.5,null,true", ("x", "y z", 0.5, None, True)),
        ("a=[1,2],[3]", ([1, 2], [3])),
        ("a=range(1,4)", (1, 2, 3)),
        ("a=choice(8,16)", (8, 16)),
        ("a='1,3'", ("1,3",)),
    ],
)
def test_a_list_of_values_is_an_axis(text: str, values: tuple) -> None:
    override = overrides.parse(text)
    assert override.values == values
    assert kinds(list(override.values)) == kinds(list(values))


@given(values=st.lists(SCALAR, min_size=1, max_size=4))
@at_most_examples(50)
def test_the_texts_of_an_axis_are_one_override_per_value(values: list) -> None:
    axis = overrides.Override("a.b", tuple(values))
    assert [overrides.parse(choice.text).value for choice in axis.split()] == values


@pytest.mark.parametrize("text", ["", "a", "a b=1", "a=[1", "a='x", "a=}", "=a=b", "a=1\n2 ="])
def test_what_is_no_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an override like key=value"):
        overrides.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("a=range(1,1000000000000000)", "a=range(0,1,1e-15)", "a=range(9,-1e18,-0.5)"),
        *("a=range(1,1)", "a=range(1,2,-1)", f"a=choice({'1,' * 10_001}1)", f"a={'1,' * 10_001}1"),
    ],
    ids=lambda text: text[:40],
)
def test_values_are_counted_before_they_are_made(text: str) -> None:
    """Of some there are too many for any machine."""
    with pytest.raises(ConfigError, match="gives no value, or more than 10,000"):
        overrides.parse(text)


@pytest.mark.parametrize("text", ["a=1,range(1,3)", "a=x,glob(y)", "a=range(1,3),2"])
def test_an_axis_holds_no_other_axis(text: str) -> None:
    with pytest.raises(ConfigError, match="has an axis inside an axis; write its values out"):
        overrides.parse(text)


def test_overrides_of_one_run_are_single_and_distinct() -> None:
    with pytest.raises(ConfigError, match="a is overridden twice"):
        overrides.parse_single(["a=1", "b=1", "a=1"])
    with pytest.raises(ConfigError, match="one run takes one value of a; use a sweep"):
        overrides.parse_single(["a=1,2"])

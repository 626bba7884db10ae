"""Foreign YAML: what would end the process, or never end, is refused at once."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from capsweep.config import bounded_yaml
from capsweep.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]
LETTERS = "abcdefghijk"
BOMB = "a: &a [1]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in pairwise(LETTERS)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(5_000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 50_000, "deeper than 64 levels"),
        ("{a: " * 50_000, "deeper than 64 levels"),
        ("- " * 50_000 + "1", "deeper than 64 levels"),
        ("".join(f"{' ' * i}a:\n" for i in range(1_000)), "deeper than 64 levels"),
        ("? " * 50_000, "deeper than 64 levels"),
        (CHAIN, "deeper than 64 levels"),
        (BOMB, "more than 100,000 values"),
        ("[" + "1," * 200_000 + "]", "more than 100,000 values"),
        ("a: &a [*a]", "stands for nothing before it, or for itself"),
        ("a: *b", "stands for nothing before it, or for itself"),
        ("a: " + "x" * 1_000_000, "1,000,003 bytes large"),
        ("a: !!python/name:os.system ''", "is a tag; remove it"),
        ("!!bool x", "is a tag; remove it"),
        ("a: !!int ''", "is a tag; remove it"),
        ("a: " + "1" * 5_000, "not YAML: Exceeds the limit"),
        ("a: 2001-99-99", "not YAML: month must be"),
        ("a: 0b_", "not YAML: invalid literal"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"a: \xe9", "not YAML"),
        ("a: \udc80", "not YAML"),
        ("a: \0", "not YAML"),
        ("{", "not YAML"),
        ("a: 1\n---\na: 2", "not YAML"),
    ],
)
@pytest.mark.timeout(20)
def test_what_no_configuration_needs_is_refused_within_a_second(
    text: str | bytes, message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=message) as refused:
        bounded_yaml.load(text)
    assert time.monotonic() - began < 1
    assert "\n" not in str(refused.value)


def test_every_shipped_file_is_read_as_ever() -> None:
    files = [*REPOSITORY.glob("conf/**/*.yaml"), *REPOSITORY.glob("sweeps/*.yaml")]
    assert len(files) > 50
    for file in files:
        assert bounded_yaml.load(file.read_bytes()) == yaml.safe_load(file.read_text()), file


def test_anchors_stand_for_what_they_stand_for() -> None:
    text = "a: &a {b: 1}\nc: *a\nd:\n  <<: *a\n  e: 2"
    assert bounded_yaml.load(text) == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}
    assert bounded_yaml.load("") is None


@pytest.mark.parametrize(
    "text", ["", "[1]", "1", "a: .nan", "a: [{b: .inf}]", "a: 2001-01-01", "1: 2", "a: {2.5: 1}"]
)
def test_settings_are_names_and_plain_values(text: str) -> None:
    with pytest.raises(ConfigError, match="it is no configuration"):
        bounded_yaml.load_settings(text)

"""Foreign YAML: what would end the process, or never end, is refused at once."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from capsweep.config import bounded_yaml, overrides
from capsweep.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 50_000, "deeper than 64 levels"),
        ("a: &a [1]\nb: [*a, *a]", "line 2: has a tag .* or an alias"),
        ("a: " + "x" * 1_000_000, "has 1,000,003 bytes"),
        ("a: !!python/name:os.system ''", "line 1: has a tag"),
        ("a: " + "1" * 5_000, "not YAML: Exceeds the limit"),
        (b"a: \xe9", "not YAML"),
        ("{", "not YAML"),
        ("a: 1\n---\na: 2", "not YAML"),
    ],
)
@pytest.mark.timeout(60)
def test_what_no_configuration_needs_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        bounded_yaml.load(text)
    assert "\n" not in str(refused.value)


# What OmegaConf, YAML 1.2 and Hydra all take for a value, or all for text.
SHARED = [
    *("null", "Null", "true", "TRUE", "False", "0", "-0", "+1", "12", "-7", "1e-3", "1E5", "+1e+3"),
    *("1.0e-3", "1.e3", ".5", ".5e-1", "5.", "0.1", "12e03", "y", "N", "2024-01-01", "_1", "a1"),
    *("2024-01-01T00:00:00", "0o9", "0xg", "1e", "e5", "True1", "1-2"),
]
APART = [
    *("010", "-010", "00", "08", "00.5", "01e5", "0o10", "0x10", "0X1f", "0b11", "1_000", "1_0.5"),
    *("0.1_0", "1e1_0", "1__0", "1_", "-.5", "+.5", ".5e3", ".inf", "-.Inf", "inf", "-inf", "nan"),
    *("NaN", ".nan", "tRue", "nULL", "yes", "No", "on", "OFF", "1:30", "1:30.5", "190:20:30"),
]


def load_file(folder: Path, text: str) -> Any:
    """What is read from a file of this text."""
    (folder / "typed.yaml").write_text(text)
    return bounded_yaml.load_file(folder / "typed.yaml")


def draw_texts() -> list[str]:
    """Short texts that may look like numbers or words, the same every time."""
    draw = random.Random(0)
    parts = [*"0123456789_.:eE+-xob", "inf", "nan", "1", "0", "true", "no", "null", "12", "."]
    return ["".join(draw.choices(parts, k=draw.randint(1, 5))) for _ in range(600)]


def test_a_text_of_a_file_is_what_the_command_line_and_hydra_files_read(tmp_path: Path) -> None:
    taken = set()
    for text in [*SHARED, *draw_texts()]:
        try:
            value = load_file(tmp_path, f"a: {text}")["a"]
            typed = overrides.parse(f"seed={text}").value
        except ConfigError:
            continue
        taken.add(text)
        in_conf = OmegaConf.create(f"seed: {text}")["seed"]
        assert (text, repr(value), repr(value)) == (text, repr(typed), repr(in_conf))
    assert taken > set(SHARED)
    assert len(taken) > 200


@pytest.mark.parametrize("text", APART)
def test_a_text_of_two_meanings_is_refused_and_taken_in_quotes(text: str, tmp_path: Path) -> None:
    message = rf"^line 2: {re.escape(text)}: some programs read this as text, others as a value"
    for content in (f"a: 1\nb: {text}", f"a: 1\n{text}: b", f"a:\n- [{text}]"):
        with pytest.raises(ConfigError, match=message):
            load_file(tmp_path, content)
    assert load_file(tmp_path, f"['{text}']") == [text]


def test_a_stored_configuration_is_read_by_the_rules_it_was_written_by() -> None:
    science = {"a": "010", "b": "1e-3", "c": "yes", "d": 1e-05, "e": "1:30", "f": 1e16, "g": None}
    assert bounded_yaml.load_settings(yaml.safe_dump(science)) == science
    written = bounded_yaml.load_settings("a: 010\nb: 1e-3\nc: yes\nd: 1:30")
    assert written == {"a": 8, "b": "1e-3", "c": True, "d": 90}


@pytest.mark.parametrize(
    "text", ["", "[1]", "1", "a: .nan", "a: [{b: .inf}]", "a: 2001-01-01", "1: 2", "a: {2.5: 1}"]
)
def test_settings_are_names_and_plain_values(text: str) -> None:
    with pytest.raises(ConfigError, match="this is no configuration"):
        bounded_yaml.load_settings(text)

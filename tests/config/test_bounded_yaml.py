"""Foreign YAML: what would end the process, or never end, is refused at once."""

from pathlib import Path

import pytest
import yaml

from capsweep.config import bounded_yaml
from capsweep.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 50_000, "deeper than 64 levels"),
        ("".join(f"{' ' * i}a:\n" for i in range(1_000)), "deeper than 64 levels"),
        ("a: &a [1]\nb: [*a, *a]", "line 2: a tag .* or an alias"),
        ("a: " + "x" * 1_000_000, "1,000,003 bytes large"),
        ("a: !!python/name:os.system ''", "line 1: a tag"),
        ("a: " + "1" * 5_000, "not YAML: Exceeds the limit"),
        ("a: 2001-99-99", "not YAML: month must be"),
        ("[1]: 2", "not YAML"),
        (b"a: \xe9", "not YAML"),
        ("{", "not YAML"),
        ("a: 1\n---\na: 2", "not YAML"),
    ],
)
def test_what_no_configuration_needs_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        bounded_yaml.load(text)
    assert "\n" not in str(refused.value)


def test_every_shipped_file_is_read_as_ever() -> None:
    files = [*REPOSITORY.glob("conf/**/*.yaml"), *REPOSITORY.glob("sweeps/*.yaml")]
    assert len(files) > 50
    for file in files:
        assert bounded_yaml.load(file.read_bytes()) == yaml.safe_load(file.read_text()), file


@pytest.mark.parametrize(
    "text", ["", "[1]", "1", "a: .nan", "a: [{b: .inf}]", "a: 2001-01-01", "1: 2", "a: {2.5: 1}"]
)
def test_settings_are_names_and_plain_values(text: str) -> None:
    with pytest.raises(ConfigError, match="it is no configuration"):
        bounded_yaml.load_settings(text)

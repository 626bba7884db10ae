"""A value is one value in what is rendered, whatever is in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_programs import HOSTILE

from capsweep.config import package_files
from capsweep.errors import ConfigError
from capsweep.launch import rendering
from capsweep.launch.driver import encoded


@pytest.mark.parametrize("value", [*HOSTILE, "", "plain", None, True, 3, 0.5, ["a: b", 1]])
def test_a_value_is_read_back_from_yaml_as_it_was(value: object) -> None:
    assert yaml.safe_load(f"key: {rendering.as_yaml(value)}\nnext: 1") == {"key": value, "next": 1}


def test_a_mapping_is_read_back_from_yaml_as_it_was() -> None:
    value = {text: [text, {"inner": text}] for text in HOSTILE}
    assert yaml.safe_load(rendering.as_yaml(value)) == value


def test_words_reach_a_program_of_the_shell_as_they_were(tmp_path: Path) -> None:
    script = f"printf '%s\\0' {rendering.as_shell(HOSTILE)}"
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.split("\0")[:-1] == list(HOSTILE)
    assert list(tmp_path.iterdir()) == []


def test_encoded_words_survive_shells_that_split_and_expand_them_twice(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    words = encoded(["python", "-c", show, *HOSTILE, "", "%", "a b"])
    beside = str(Path(sys.executable).parent)
    once = subprocess.run(
        ["bash", "-c", f"eval {' '.join(words)}"],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join([beside, os.environ["PATH"]])},
        capture_output=True,
        text=True,
    )
    assert once.stdout == f"{[*HOSTILE, '', '%', 'a b']}\n", once.stderr
    assert list(tmp_path.iterdir()) == []


def test_words_that_no_shell_reads_anything_into_stay_readable() -> None:
    plain = ["capsweep", "sweep", "ablation", "places.storage=s3://bucket/x", "--shard=1/2"]
    assert encoded(plain) == plain


def test_a_key_that_a_template_does_not_find_is_an_error_naming_both() -> None:
    with pytest.raises(ConfigError, match=r"conf/cluster/aws\.yaml\.j2: .*cluster_name"):
        rendering.render_yaml("aws.yaml.j2", {"name": "aws"})


@pytest.mark.parametrize(
    "value", [text for text in HOSTILE if text not in ("no", "1e3", "*anchor")]
)
def test_what_sbatch_would_have_to_unquote_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.partition="):
        rendering._directive(value, "partition")


def test_no_template_quotes_by_itself_or_turns_quoting_off() -> None:
    templates = sorted((package_files.find_folder("conf") / "cluster").glob("*.j2"))
    assert len(templates) >= 6
    for file in templates:
        text = file.read_text()
        assert "| safe" not in text
        assert "autoescape" not in text
        for quote in ("'{{", '"{{'):
            assert quote not in text, file

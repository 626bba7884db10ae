"""A sweep file is read strictly: what is misspelt, doubled or missing is named with its file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.config import overrides
from capsweep.errors import ConfigError
from capsweep.sweep import expand, spec
from capsweep.sweep.spec import Sweep

TEXT = """\
question: Does it help?
base: [experiment=digits]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small]}
  capsnet:
    fixed: [model=capsnet_small]
    space:
      routing.num_iters: [1, 3]
table:
  rows: [arm]
  columns: [dataset]
  metric: test/error
published: {source: a paper, values: [{arm: cnn, value: 0.5}]}
"""

Load = Callable[[str, str], Sweep]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads the sweep file above with one of its pieces replaced."""

    def edited(old: str, new: str) -> Sweep:
        assert old in TEXT
        path = tmp_path / "small.yaml"
        path.write_text(TEXT.replace(old, new))
        return spec.load(str(path))

    return edited


def test_a_sweep_file_is_read_as_it_is_written(load: Load) -> None:
    sweep = load("", "")
    assert (sweep.name, sweep.question, sweep.baseline) == ("small", "Does it help?", "cnn")
    assert sweep.seeds == (0, 1)
    fixed = {arm.name: [override.text for override in arm.fixed] for arm in sweep.arms}
    assert fixed == {
        "cnn": ["experiment=digits", "model=cnn_small"],
        "capsnet": ["experiment=digits", "model=capsnet_small"],
    }
    (axis,) = sweep.arms[1].axes
    assert (axis.key, axis.values) == ("routing.num_iters", (1, 3))
    assert (sweep.rows, sweep.columns, sweep.metric) == (("arm",), ("dataset",), "test/error")
    assert sweep.published.values == ({"arm": "cnn", "value": 0.5},)


def test_what_all_published_numbers_are_of_gives_way_to_what_one_is_of(load: Load) -> None:
    of = "of: {model: capsnet, epochs: 9}, values: [{arm: capsnet, value: 0.1}, {model: cnn_tiny, "
    first, second = load("values: [{", of).published.values
    assert first == {"model": "capsnet", "epochs": 9, "arm": "capsnet", "value": 0.1}
    assert second == {"model": "cnn_tiny", "epochs": 9, "arm": "cnn", "value": 0.5}


AXIS = "      routing.num_iters: [1, 3]\n"
FIXED = "fixed: [model=capsnet_small]"
SEEDS = ("[]", "[0, 0]", "[-1]", "3", "[1.0]", "[true]")
REFUSED = [
    *(("[0, 1]", seeds, "seeds must be distinct whole numbers") for seeds in SEEDS),
    (FIXED, f"{FIXED}\n    matched: maybe", r"matched: Input should be a valid boolean"),
    (FIXED, f"{FIXED}\n    matchd: true", r"matchd: no such key; did you mean matched\?"),
    ("  capsnet:", '  "":', r"arms: '' cannot name an arm; write one line of printable text"),
    ("  capsnet:", "  1:", r"arms\.1: Input should be a valid string, got 1"),
    ("rows: [arm]", "rows: arm", "table.*rows"),
    (AXIS, AXIS * 2, r"routing\.num_iters is given twice in the section at line 10"),
    ("seeds:", "kind: survey\nseeds:", r"kind: survey: must be one of ablation, search"),
    ("rows:", "row:", r"table\.row: no such key; did you mean rows\?"),
    ("question: Does it help?\n", "", r"question is missing"),
    ("baseline: cnn", "baseline: cn", r"baseline: cn: no such arm; have cnn"),
    ("[1, 3]", "[1, 3, 1]", r"arms\.capsnet\.space: routing\.num_iters has the value 1 twice"),
    ("arm: cnn, value", "arm: cn, value", r"published\.values: arm: cn is unknown; have cnn"),
    ("[1, 3]", "3", r"arms\.capsnet\.space\.routing\.num_iters must be a list of values"),
    (FIXED, "fixed: [routing.num_iters=2]", r"arms\.capsnet: routing\.num_iters is set twice"),
    ("[experiment=digits]", '["epochs=1,2"]', r"one run takes one value of epochs"),
    ("routing.num_iters: [1, 3]", "seed: [1, 3]", r"arms\.capsnet: seed cannot be an axis"),
    ("value: 0.5", "error: 0.5", r"published\.values: .*: `value` must be"),
    (TEXT, "", r"no keys; a sweep file begins"),
    ("Does it help?", "!!python/name:os.system", r"a tag \(!\) or an alias"),
    ("value: 0.5", "value: 2.5", r"`value` must be a test/error from 0 to 1; 2\.5 %"),
    ("value: 0.5", "value: 1e999", r"inf}: `value` must be a test"),
    ("[1, 3]", "[1, 010]", r"line 10: 010: some programs read this as text, others as a value"),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_a_faulty_file_is_refused_with_its_name_and_the_key(
    old: str, new: str, message: str, load: Load
) -> None:
    with pytest.raises(ConfigError, match=rf"^small\.yaml: .*{message}") as caught:
        load(old, new)
    assert "\n" not in str(caught.value)


def test_a_file_draws_nothing_from_the_environment(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    sweep = load(AXIS, "      logger.project: ['${oc.env: A_SECRET}', x]\n")
    with pytest.raises(ConfigError, match=r"^small\.yaml: arm .*: logger\.project may") as caught:
        expand.expand_sweep(sweep)
    assert "hunter2" not in str(caught.value)


def test_a_value_of_an_axis_is_what_the_command_line_reads(load: Load) -> None:
    (axis,) = load("num_iters: [1, 3]", "gradient: [y, .5, 1e-3, 2024-01-01]").arms[1].axes
    assert axis.values == overrides.parse("routing.gradient=y,.5,1e-3,2024-01-01").values


@pytest.mark.parametrize("name", ["...yaml", ".a.yaml", "a b.yaml", "-a.yaml"])
def test_a_file_whose_name_is_no_folder_of_a_report_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TEXT)
    with pytest.raises(ConfigError, match=r"^SWEEP: the file name '.*' is not allowed; rename"):
        spec.load(str(tmp_path / name))


def test_an_unknown_sweep_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^SWEEP=ablatoin: there is no file .*ablatoin\.yaml; "):
        spec.load("ablatoin")

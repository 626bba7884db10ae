"""What cannot be meant is refused in one line that names the key and the cure."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import InstantiationException

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.config.validation import check_config
from capsweep.errors import ConfigError, DataError
from capsweep.ledger import causes
from capsweep.training import build
from capsweep.training.run import Job, run

# Overrides, typed as on a command line, and what the message must say.
REFUSED = {
    # keys and groups that are not there
    "epoch=3": r"^epoch: no such key; did you mean epochs\?",
    "optim.lr=0.01": r"^optim\.lr: no such key; did you mean optim\.optimizer\.lr\?",
    "model=cnn_small loss.classification.reduction=sum": r"; another file of conf/loss has",
    "model=capsnett": r"^model=capsnett: no such option; have .*\bcapsnet, .*\bcnn_small\b",
    # types
    "epochs=three": r"^epochs must be an integer, got 'three'",
    "model.decoder.hidden=[1,a]": r"^model\.decoder\.hidden\[1\] must be an integer, got 'a'",
    # the shape of an override
    "+new.key=1": r"^\+new\.key=1: keys of conf/ cannot be added, .*; write new\.key=VALUE$",
    "model@foo=capsnet": r"; write model=VALUE$",
    # what the grammars raise
    "seed=range(1,2,0.0)": r"^'seed=range\(1,2,0\.0\)' is not .*: Invalid range values",
    f"seed={'9' * 5001}": r"^'seed=9{195}' is not an override like key=value .*: Exceeds the",
    "epochs=interval(1,5)": r"epochs=interval\(1,5\): an interval has no finite list",
    # sections and wires
    "model.conv=5": r"^model\.conv is a section; .*such as model\.conv\.channels",
    "model.routing.num_iters=2": r"^model\.routing\.num_iters: .* did you mean rou",
    "model.routes=false": r"^model\.routes belongs to its file",
    "epochs=${batch_size}": r"^epochs may not contain \$\{, not even as text; write the value",
    "places.storage=x${seed}": r"^places\.storage may not contain \$\{",
    # bounds
    "cluster=address cluster.address=5": r"^cluster\.address must be auto, HOST:PORT such",
    "routing.impl=magic": r"^routing\.impl must be one of auto, reference, fast, triton",
    "model=cnn_small loss=spread": r"^loss=spread needs capsules, .*set loss=cross_entropy",
    # a setting that would train another one, or nothing
    "optim.optimizer.lr=1e-7": r"^optim\.optimizer\.lr=1e-07 is below optim\.schedule\.floor=1e-06",
    # slips of digits
    "model.primary.types=1000000000000": r"^model\.primary\.types must be finite, and at most",
    f"seed={2**63}": r"^seed must be finite, and at most 9223372036854775807$",
    # of keys that others are drawn from
    "cluster=slurm cluster.nodes=-1": r"^cluster\.nodes must be >= 1, got -1",
    # combinations
    "model=cnn_small loss.reconstruction.weight=0.1": r"^loss\.reconstruction\.weight needs a dec",
    "stop_accuracy=0.9 dataset.validation=0": r"^stop_accuracy needs .* set dataset\.validation,",
    # matrix capsules
    "model=matrix_capsnet loss.classification.first=0.95": r"^loss\.classification\.first .*\.last",
    # data
    "dataset.validation=1437": r"dataset\.validation must be below the 1437 training exam",
    "dataset=cifar10 dataset.class_names=[ant]": "dataset.class_names has 1 names for 10 classes",
    "dataset=cifar10 dataset.image_shape=[3,28,28]": r"contradicts dataset\.batches\.crop=24",
    "dataset=affnist_like dataset.footnote=0": r"footnote takes its value from dataset\.source; ",
    "experiment=overlap dataset=cifar10": r"^conf/: In 'experiment/overlap': no chosen file has",
    "experiment/paper=mnist": r"^experiment/paper: no such key; did you mean experiment\?",
    "dataset=smallnorb_azimuth dataset.reader.viewpoint=light": r"viewpoint must be one of elev",
    # devices
    "trainer.devices=2": r"devices must be auto or 1, since a sweep spreads its cells .* got 2",
}


@pytest.mark.parametrize(("line", "message"), REFUSED.items(), ids=REFUSED)
def test_a_bad_override_is_refused_in_one_line_with_its_key_and_cure(
    line: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose.cell(line.split())
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["model", "model.decoder", "routing", "optim.optimizer"])
def test_a_configuration_cannot_call_what_is_not_allowed(section: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\._target_: 'os\.system' may not be called"):
        compose.cell([f"{section}._target_=os.system"])


def test_an_optimiser_whose_file_lacks_a_section_is_named() -> None:
    config = dict(compose.cell([]).config)
    config["optim"] = {"name": "mine", "optimizer": config["optim"]["optimizer"]}
    with pytest.raises(ConfigError, match=r"^optim=mine: clip_norm, decayed, schedule missing; "):
        check_config(config)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("optim.optimizer.lr=1", "optim.optimizer.lr=1.0"),
        ("optim.optimizer.betas=[0,0]", "optim.optimizer.betas=[0.0,0.0]"),
        ("precision=32", "precision='32'"),
        ("loss.reconstruction.weight=0", "loss.reconstruction.weight=-0.0"),
        ("model.initial.bias=1", "model.initial.bias=1e0"),
        ("epochs=choice(3)", "epochs=3"),
    ],
)
def test_two_spellings_of_a_setting_are_one_cell(one: str, same: str) -> None:
    assert compose.cell([one]).config == compose.cell([same]).config


SECRET = "hunter2"
# Overrides, between which a bar stands, that would bring a variable into what is recorded.
ATTACKS = [
    "logger.project=${oc.env:A_SECRET}",
    "logger.project='${oc.${logger.entity}:A_SECRET}'|logger.entity=env",
    "seed='${oc.decode:${oc.env:A_NUMBER}}'",
    "model.decoder.hidden=['${oc.decode:${oc.env: A_NUMBER}}']",
    "logger={project:'${oc.env: A_SECRET}'}",
    "logger.project=choice('${oc.env: A_SECRET}')",
    "logger.project=${places.storage}|places.storage=${oc.env: A_SECRET}",
    "places.storage=${oc.env: A_SECRET}",
    "cluster=address|cluster.jobs=${oc.env:A_SECRET}",
    "logger.project='\\${oc.env:A_SECRET}'",  # left for whoever reads the text next
    "model=${oc.env:A_SECRET}",
    "+logger.project=${oc.env: A_SECRET}",
    "hydra.run.dir=${oc.env: A_SECRET}",
]


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", SECRET)
    monkeypatch.setenv("A_NUMBER", "7042")


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("text", ATTACKS)
def test_no_variable_of_the_environment_is_recorded_or_printed(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose.cell(text.split("|"))
    assert not re.search(f"{SECRET}|7042|\\n", str(caught.value))


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize(
    "value",
    ["${oc.env: A_SECRET}", "${places.storage}", "${seed}", "${oc.select:seed}", "${.mode}"],
)
def test_a_preset_draws_nothing_from_outside(
    value: str, conf_tree: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", SECRET)
    preset = f"# @package _global_\nlogger:\n  project: '{value}'\n"
    (conf_tree() / "experiment" / "mine.yaml").write_text(preset)
    with pytest.raises(ConfigError, match=r"^logger\.project=.* may name only another") as caught:
        compose.cell(["experiment=mine"])
    assert SECRET not in str(caught.value)


@pytest.mark.usefixtures("secret")
def test_a_configuration_from_elsewhere_is_built_without_the_environment() -> None:
    """As it comes with a job or a ledger: composed on another machine, if at all."""
    config = compose.cell(["model=cnn_small"]).config
    for text in ("${oc.env: A_NUMBER}", "${oc.decode:${oc.env:A_NUMBER}}", "\\${oc.env:A_SECRET}"):
        altered = {**config, "model": {**config["model"], "hidden": text}}
        with pytest.raises(ConfigError, match=r"may not contain \$\{") as caught:
            build.build_network(altered)
        assert not re.search(f"{SECRET}|7042", str(caught.value))


def test_weights_beyond_all_memory_are_a_lack_of_memory_that_names_the_network() -> None:
    words = ["model=cnn_small", "model.conv.channels=[8,8,1000]", "model.hidden=1000000000"]
    with pytest.raises(InstantiationException, match=r"capsweep\.model\.cnn\.") as caught:
        build.build_network(compose.cell(words).config)
    cause = causes.describe_cause(caught.value)
    assert causes.classify_cause(cause) == causes.CauseKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("dataset=cifar10 dataset.batches.crop=28", [3, 28, 28]),
        ("dataset=smallnorb dataset.batches.crop=40", [2, 40, 40]),
        ("dataset=affnist_like dataset.batches.canvas=44", [1, 44, 44]),
    ],
)
def test_networks_follow_the_pixels_that_a_data_set_makes(line: str, shape: list[int]) -> None:
    config = compose.cell([*line.split(), "model=capsnet"]).config
    assert config["dataset"]["image_shape"] == config["model"]["image_shape"] == shape
    assert config["dataset"].get("test", {}).get("canvas", shape[1]) == shape[1]


def test_declared_examples_are_verified_when_the_data_is_read(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("dataset.examples.train=1438")
    with pytest.raises(DataError, match=r"dataset\.examples declares .*1438.*1437.* were read"):
        run(Job(cell))

"""What cannot be meant is refused in one line that names the key and the cure."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.config import compose
from capsweep.errors import ConfigError

TARGETS = ("model", "model.decoder", "routing", "loss.classification", "optim.optimizer")

# Overrides, typed as on a command line, and what the message must say.
REFUSED = {
    # keys and groups that are not there
    "epoch=3": r"^epoch: no such key; did you mean epochs\?",
    "optim.optimizer.lrr=1": r"^optim\.optimizer\.lrr: .*did you mean optim\.optimizer\.lr\?",
    "epochs.x=3": r"^epochs\.x: no such key; did you mean epochs\?",
    "zzz=1": r"^zzz: no such key; .*--help",
    "model=cnn_small loss.classification.reduction=sum": (
        r"^loss\.classification\.reduction: no such key; another choice of loss/classification may"
    ),
    "hydra.run.dir=x": r"^hydra\.run\.dir: no such key",
    "modle=capsnet": r"^modle: no such key; did you mean model\?",
    "model=capsnett": r"^model=capsnett: no such option; have .*\bcapsnet, .*\bcnn_small\b",
    "dataset=imagenet": r"^dataset=imagenet: no such option; have .*\bdigits, .*\bmnist\b",
    "model=null": r"^model=None: no such option",
    # types
    "epochs=three": r"^epochs must be an integer, got 'three'",
    "epochs='3'": r"^epochs must be an integer, got '3'",
    "epochs=1.5": r"^epochs must be an integer, got 1\.5",
    "epochs=null": r"^epochs must be an integer, got None",
    "epochs=": r"^epochs must be an integer, got ''",
    "seed=true": r"^seed must be an integer, got True",
    "optim.optimizer.lr=fast": r"^optim\.optimizer\.lr must be a number, got 'fast'",
    "optim.optimizer.lr=null": r"^optim\.optimizer\.lr must be a number, got None",
    "routing.bias=1": r"^routing\.bias must be true or false, got 1",
    "places.storage=null": r"^places\.storage must be text, got None",
    "model.decoder.hidden=3": r"^model\.decoder\.hidden must be a list such as \[128, 256\], got 3",
    "model.decoder.hidden=[1,a]": r"^model\.decoder\.hidden\[1\] must be an integer, got 'a'",
    # the shape of an override
    "epochs": r"'epochs' is not an override like key=value",
    "+new.key=1": r"'new\.key' must already stand in conf/",
    "++epochs=3": r"keys cannot be added",
    "~epochs": r"^~epochs: keys cannot be deleted",
    "model@foo=capsnet": r"write model=option",
    "epochs=3 epochs=4": r"^epochs is overridden twice",
    "model=capsnet model=cnn_small": r"^model is overridden twice",
    "epochs=1,2": r"one run takes one value of epochs; use a sweep",
    "model=capsnet,cnn_small": r"one run takes one value of model; use a sweep",
    "epochs=interval(1,5)": r"epochs=interval\(1,5\): an interval has no finite list",
    # sections and wires
    "model.conv=5": r"^model\.conv is a section; .*such as model\.conv\.channels",
    "optim.optimizer={lr:1}": r"^optim\.optimizer is a section; set its keys one by one",
    "model.routing=dynamic": r"^model\.routing is a section",
    "model.routing.num_iters=2": r"is wired to routing\.num_iters; set routing\.num_iters",
    "epochs='${nothing}'": r"^epochs: .*'nothing' not found",
    # bounds
    "epochs=0": r"^epochs must be >= 1, got 0",
    "seed=-1": r"^seed must be >= 0, got -1",
    "batch_size=0": r"^batch_size must be >= 1",
    "routing.num_iters=0": r"^routing\.num_iters must be >= 1, got 0",
    "limit_batches=0": r"^limit_batches must be null or >= 1, got 0",
    "limit_batches=some": r"^limit_batches must be null or >= 1, got some",
    "precision=16": r"^precision must be one of 32, bf16-mixed, got 16",
    "rerun=sometimes": r"^rerun must be one of never, stale, always",
    "optim.optimizer.lr=nan": r"^optim\.optimizer\.lr must be > 0, got nan",
    "optim.optimizer.lr=inf": r"^optim\.optimizer\.lr must be > 0, got inf",
    "loss.reconstruction.weight=-1": r"^loss\.reconstruction\.weight must be >= 0",
    "routing.impl=magic": r"^routing\.impl must be one of .*reference",
    "model=matrix_capsnet routing.impl=triton": r"^routing\.impl=triton is for .*routing=em",
    "model=matrix_capsnet routing=dynamic routing.impl=triton": r".*set routing\.impl=fast",
    "routing.gradient=half": r"^routing\.gradient must be one of full, last, got half",
    "routing.none_of_the_above=1": r"^routing\.none_of_the_above must be true or false, got 1",
    "routing.learned_prior=yes": r"^routing\.learned_prior must be true or false, got 'yes'",
    "model.padding=full": r"^model\.padding must be one of valid, same, got full",
    "model.primary.divided=32": r"^model\.primary\.divided must be true or false, got 32",
    "model.initial.weights=zero": r"^model\.initial\.weights must be one of variance, truncated",
    "model.initial.bias=high": r"^model\.initial\.bias must be null or a finite number, got high",
    "model.initial.bias=inf": r"^model\.initial\.bias must be null or a finite number, got inf",
    "loss.classification.reduction=mean": r"^loss\.classification\.reduction must be one of sum, h",
    "model=matrix_capsnet loss.classification.reduction=half_mean": r"^loss\.class.* of sum, mean ",
    "model=matrix_capsnet model.pose=tensor": r"^model\.pose must be one of matrix, vector",
    "model=matrix_capsnet routing.norm=none": r"^routing\.norm must be one of all, types, pos",
    "model=cnn_small loss=spread": r"^loss=spread needs capsules, .*set loss=cross_entropy",
    "optim.decayed=biases": r"^optim\.decayed must be one of all, weights, got biases",
    "optim.clip_norm=0": r"^optim\.clip_norm must be null or > 0, got 0",
    "optim.schedule.warmup=-1": r"^optim\.schedule\.warmup must be >= 0, got -1",
    "stop_accuracy=2.0": r"^stop_accuracy must be null or in \[0, 1\], got 2\.0",
    # a setting that would train another one, or nothing
    "optim.optimizer.lr=1e-7": r"^optim\.optimizer\.lr=1e-07 is below optim\.schedule\.floor=1e-06",
    "optim.schedule.floor=1": r"^optim\.optimizer\.lr=0\.001 is below .*schedule\.floor=0$",
    "optim.schedule.rate=0": r"^optim\.schedule\.rate must be in \(0, 1\], got 0",
    "model=cnn_small model.dropout=1": r"^model\.dropout must be in \[0, 1\), got 1",
    "dataset.num_classes=11": r"^dataset\.num_classes belongs to its file",
    "batch_size=10000000": r"^batch_size must be at most 1000000, got 10000000",
    # slips of digits
    "routing.num_iters=1000000000000": r"^routing\.num_iters must be at most 1000, got 10",
    "trainer.threads=100000000": r"^trainer\.threads must be at most 1024, got 100000000",
    "epochs=10000000000": r"^epochs must be at most 1000000, got 10000000000",
    "model.conv.channels=10000000000": r"^model\.conv\.channels must be at most 1000000000, got",
    f"seed={2**63}": r"^seed must be below 2\^63; it has 64 bits",
    f"seed={10**4000}": r"^seed must be below 2\^63; it has 13288 bits",
    "resources.gpu=some": r"^resources\.gpu must be auto, a fraction or a whole number",
    # of keys that others are drawn from
    "cluster=slurm cluster.nodes=-1": r"^cluster\.nodes must be >= 1, got -1",
    # combinations
    "model=cnn_small loss=margin": r"^loss=margin .* model=cnn_small .*set loss=cross_entropy",
    "model=cnn_small loss.reconstruction.weight=0.1": r"^loss\.reconstruction\.weight needs a dec",
    "loss.classification.absent=0.9": r"^loss\.classification\.absent must be below .*present",
    "stop_accuracy=0.9 dataset.validation=0": r"^stop_accuracy .* dataset\.validation=0 .*; set it",
    "loss.classification.present=0.05": r"^loss\.classification\.absent must be below .*present",
    # matrix capsules
    "model=matrix_capsnet model.initial.votes=-0.1": r"^model\.initial\.votes must be >= 0",
    "model=matrix_capsnet routing.rate=1": r"^routing\.rate must be in \[0, 1\), got 1\.0",
    "model=matrix_capsnet loss.classification.first=0.95": r"^loss\.classification\.first .*\.last",
}


@pytest.mark.parametrize(("line", "message"), REFUSED.items(), ids=REFUSED)
def test_a_bad_override_is_refused_in_one_line_with_its_key_and_cure(
    line: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose.cell(line.split())
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", TARGETS)
def test_a_configuration_cannot_call_what_is_not_allowed(section: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\._target_: 'os\.system' may not be called"):
        compose.cell([f"{section}._target_=os.system"])


@given(data=st.data(), text=st.from_regex(r"x[a-z]{0,7}", fullmatch=True))
def test_text_is_refused_for_every_number_by_the_name_of_its_key(
    numeric_keys: list[str], data: st.DataObject, text: str
) -> None:
    assert len(numeric_keys) > 20
    key = data.draw(st.sampled_from([k for k in numeric_keys if not k.endswith(".num_classes")]))
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} must be .*got '{text}'"):
        compose.cell([f"{key}={text}"])


@pytest.mark.parametrize("value", ["many", "0.5"])
def test_a_bad_value_is_reported_at_the_key_that_was_set(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^resources\.cpu must be"):
        compose.cell([f"resources.cpu={value}"])


@pytest.mark.parametrize("gpu", [0, 0.5, 1, 2])
def test_resources_gpu_takes_a_number(gpu: float) -> None:
    assert compose.cell([f"resources.gpu={gpu}"]).config["resources"]["gpu"] == gpu


@pytest.mark.parametrize("line", ["cluster.address={a:1}", "optim.optimizer.betas=[nan,0.9]"])
def test_an_odd_value_of_a_key_without_bounds_is_refused_by_name(line: str) -> None:
    key = re.escape(line.split("=")[0])
    with pytest.raises(ConfigError, match=rf"^{key}"):
        _ = compose.cell([line]).signature  # a sweep signs while it plans


SAME = [
    ("optim.optimizer.lr=1", "optim.optimizer.lr=1.0"),
    ("loss.reconstruction.weight=1", "loss.reconstruction.weight=1.0"),
    ("optim.optimizer.betas=[0,0]", "optim.optimizer.betas=[0.0,0.0]"),
    ("optim.optimizer.lr=1e-3", "optim.optimizer.lr=0.001"),
    ("precision=32", "precision='32'"),
    ("routing.bias=true", "routing.bias=True"),
    ("epochs=choice(3)", "epochs=3"),
]


@pytest.mark.parametrize(("one", "same"), SAME)
def test_two_spellings_of_a_setting_are_one_cell(one: str, same: str) -> None:
    first, second = compose.cell([one]), compose.cell([same])
    assert first.config == second.config
    assert first.signature == second.signature


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "model.num_classes=5",
            r"^model\.num_classes is drawn from dataset\.num_classes; set that",
        ),
        ("model.image_shape=[1,2,2]", r"^model\.image_shape is drawn from dataset\.image_shape;"),
        ("dataset.source=mnist", r"^dataset\.source: taken by none of the chosen files; by conf/"),
        ("experiment/paper=mnist", r"^experiment/paper: no such group; write experiment=paper/OPT"),
        ("experiment.paper=mnist", r"^experiment\.paper: no such group; write experiment=paper/O"),
        ("dataset.name=mine", r"^dataset\.name belongs to its file"),
        ("routing._partial_=false", r"^routing\._partial_ belongs to its file"),
        ("model.conv.channels=0", r"^model\.conv\.channels must be whole numbers >= 1"),
        ("model.decoder.hidden=[8,0]", r"^model\.decoder\.hidden must be whole numbers >= 1"),
        ("=3", "is not an override|no such key"),
    ],
)
def test_keys_that_describe_another_choice_cannot_be_set(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose.cell([line])


@pytest.mark.parametrize(
    "text",
    [
        "resources.gpu=${oc.env:A_SECRET}",
        "logger.project='${oc.decode:${oc.env:A_SECRET}}'",
        "logger.project='${places.storage}${oc.env:A_SECRET,x}'",
        "logger.entity='${oc.env:A_SECRET}'",
        "places.ledger=${logger.project} logger.project=${oc.env:A_SECRET}",
    ],
)
def test_the_environment_is_read_for_places_alone(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other value is recorded with the cell and uploaded."""
    monkeypatch.setenv("A_SECRET", "0")
    with pytest.raises(ConfigError) as refused:
        compose.cell(text.split())
    assert re.match(
        r"(resources|logger)\.\w+: \$\{oc\.env:A_SECRET\} .*below places alone", str(refused.value)
    )
    places = compose.cell(["places.storage=${oc.env:A_SECRET}"]).config["places"]
    assert places["storage"].endswith("/0")

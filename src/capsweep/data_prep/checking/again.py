"""The job that a manifest tells of, prepared again from the source images that are here."""

from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.config import compose
from capsweep.config.overrides import render
from capsweep.data.shards.manifest import Content, Manifest
from capsweep.data_prep import jobs
from capsweep.data_prep.job import Job
from capsweep.errors import DataError

# Where `dataset=NAME` has what a manifest's settings say.
KEYS: Mapping[str, Mapping[str, str]] = {
    "multimnist": {
        "seed": "dataset.batches.seed",
        "margin": "dataset.batches.margin",
        "shift": "dataset.batches.shift",
        "validation": "dataset.validation",
    },
    "smallnorb": {"sha256": "dataset.reader.sha256"},
    "affnist": {"sha256": "dataset.test.sha256"},
    "affnist_like": {
        "rotation": "dataset.test.rotation",
        "shear": "dataset.test.shear",
        "scale": "dataset.test.scale",
        "canvas": "dataset.batches.canvas",
        "seed": "dataset.test.seed",
    },
}
SOURCES = ("multimnist", "affnist_like")  # made of digits that `dataset.source` chooses
SOURCE = "dataset.source"
PAIRS = "dataset.batches.pairs"
DIGITS = "digits"  # the field of what examples are composed of


def job(manifest: Manifest, data: str | None = None, overrides: Sequence[str] = ()) -> Job:
    """What made the examples; of a virtual data set with the digits alone.

    data: where source images are; None: as configured. overrides: as for `data make`, where the
    manifest does not say it. Raises DataError where the source is absent, or another one than the
    manifest's, ConfigError for settings that no job has.
    """
    content = manifest.content
    kind = jobs.kind(content.dataset)
    is_composed = manifest.store == "virtual" or DIGITS in manifest.fields
    prepare = kind.with_sources if is_composed and kind.with_sources else kind.prepare
    more = [] if data is None else [render("places.data", data)]
    given = _joined([*settings(content), *more], overrides)
    if content.dataset not in SOURCES:
        return _same(prepare(given), content)
    if kind.copies:
        copies = _ratio(content.splits, kind.copies(given, 1).content.splits)
        return _same(kind.copies(given, copies), content)
    once = prepare(_joined(given, [f"{PAIRS}=1"]))
    pairs = _ratio(content.splits, once.content.splits)
    return _same(prepare(_joined(given, [f"{PAIRS}={pairs}"])), content)


def _joined(texts: Sequence[str], later: Sequence[str]) -> list[str]:
    """Overrides, of which a later one of the same key counts."""
    keys = {text.partition("=")[0] for text in later}
    return [*(text for text in texts if text.partition("=")[0] not in keys), *later]


def settings(content: Content) -> list[str]:
    """Overrides of `dataset=NAME` that stand for the manifest's settings, but for counts."""
    keys = KEYS.get(content.dataset, {})
    if unknown := sorted(set(content.settings) - set(keys)):
        raise DataError(
            f"{content.dataset}: settings that this program does not know ({', '.join(unknown)}); "
            "use the version of capsweep that made the data set"
        )
    given = [f"{SOURCE}={content.origin.name}"] if content.dataset in SOURCES else []
    for name, value in content.settings.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        given += [render(".".join(filter(None, (keys[name], key))), part) for key, part in inner]
    return given


def asked(content: Content) -> list[str]:
    """Settings that are not the defaults, as `data make NAME` is given them; and PAIRS, where the
    source declares how many digits it has.
    """
    config = compose.cell([f"dataset={content.dataset}"]).config
    given = [
        text for text in settings(content) if not _is_default(config, *text.split("=", maxsplit=1))
    ]
    if content.dataset in SOURCES and "test" in content.splits:
        digits = compose.cell([f"dataset={content.origin.name}"]).config["dataset"]["examples"]
        given += ["--pairs", str(content.splits["test"] // digits["test"])]
    return given


def without_network(content: Content) -> list[str]:
    """Overrides for who only looks: no file is downloaded."""
    given = settings(content)[: content.dataset in SOURCES]
    dataset = compose.cell([f"dataset={content.dataset}", *given]).config["dataset"]
    return ["dataset.reader.mirrors=[]"] if "mirrors" in dataset["reader"] else []


def _is_default(config: Mapping[str, Any], key: str, value: str) -> bool:
    for step in key.split("."):
        config = config.get(step, {}) if isinstance(config, Mapping) else {}
    return render(key, config) == f"{key}={value}"


def _ratio(whole: Mapping[str, int], once: Mapping[str, int]) -> int:
    """How many times the source digits the examples are; 1 where that is no whole number."""
    ratios = {count // once[split] for split, count in whole.items() if split in once}
    return max(ratios, default=1) or 1


def _same(made: Job, content: Content) -> Job:
    """The job, if it makes this content. Raises DataError naming what differs."""
    if made.content == content:
        return made
    here, there = _flat(made.content), _flat(content)
    differing = [
        f"{key}: {there.get(key, 'none')} in index.json, {here.get(key, 'none')} here"
        for key in {**there, **here}
        if here.get(key) != there.get(key)
    ]
    raise DataError(
        f"{content.dataset}: the source that is read here makes other examples "
        f"({'; '.join(differing)}); set --data-dir to the files that the data set was made of, and "
        "use the version of capsweep that made it"
    )


def _flat(content: Content) -> dict[str, Any]:
    made: dict[str, Any] = {"dataset": content.dataset, "version": content.version}
    parts = {"settings": content.settings, "origin": vars(content.origin), "splits": content.splits}
    for section, values in parts.items():
        made |= {f"{section}.{key}": value for key, value in values.items()}
    return made

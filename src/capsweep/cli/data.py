"""`capsweep data`: make and verify data sets of shards."""

import argparse
import pkgutil
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from rich.progress import Progress

import data_prep
from capsweep.cluster import driver
from capsweep.config import compose, places
from capsweep.config.overrides import render
from capsweep.errors import ConfigError, UserError
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of
from capsweep.shards import making, verify
from capsweep.shards.layout import MULTIMNIST, ShardJob
from capsweep.shards.making import FINISHED, MakingPlan, MakingResult, TaskRunner
from capsweep.shards.manifest import INDEX, DataSetContent, Manifest, ShardPart, read_manifest
from capsweep.shards.reader import declare_data_set
from capsweep.storage.stores import is_url
from capsweep.training import build

SHARDS = "multimnist_shards"  # the file of conf/dataset that reads a MultiMNIST made of shards


def prepare_job(name: str, overrides: Sequence[str], pairs: int | None) -> ShardJob:
    """Return the job that makes a data set (data_prep/NAME.py), after reading its source images.

    Args:
        name: The name of the data set.
        overrides: Overrides of the configuration of the data set.
        pairs: The value of PAIRS; None for the default.

    Raises:
        UserError: No job makes this data set.
        ConfigError: An override is wrong; the message names the key.
        DataError: The source images are missing.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(data_prep.__path__))
    if name not in names:
        text = f"DATASET={name}: only {', '.join(names)} is made of shards; for other data sets, "
        text += "put the official files into a folder and type capsweep train "
        raise UserError(f"{text}dataset={name} DATA_DIR=FOLDER")
    module = import_module(f"data_prep.{name}")
    config = compose.cell([f"dataset={name}", *overrides]).config
    digits = build.build_reader(config).read(str(places.resolve(config["places"]).data))
    return module.prepare_job(config["dataset"], digits, pairs)


def _list_places(parsed: argparse.Namespace) -> list[str]:
    """Return a list with the override of DATA_DIR, or an empty list if DATA_DIR was not typed."""
    return [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]


def _find_data(overrides: Sequence[str]) -> str:
    """Return the folder of all data sets, which an override of `places` can set."""
    return compose.cell([t for t in overrides if t.startswith("places.")]).config["places"]["data"]


def run_make(parsed: argparse.Namespace) -> int:
    """Make the missing shards of a data set, and return the exit status.

    With --dry-run, only print the plan.
    """
    run_tasks, overrides = _choose_runner(parsed), [*parsed.overrides, *_list_places(parsed)]
    pairs, shards = (_read_count(parsed, name) for name in ("PAIRS", "SHARDS"))
    name = parsed.dataset or MULTIMNIST
    job = prepare_job(name, overrides, pairs)
    data = _find_data(overrides)
    folder = f"{data}/{name}" if parsed.storage is None else parsed.storage
    if is_url(folder) or not folder:
        cure = "make it in a folder, and copy the finished folder to the object store"
        raise UserError(f"STORAGE={folder}: must be a folder on a disk; {cure}")
    plan = making.make_plan(job, Path(places.resolve_path(folder)), shards)
    print(*_describe_plan(plan), sep="\n", flush=True)
    if parsed.dry_run:
        return 0
    console = terminal.make_console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_interactive)
    with driver.interrupted_by_sigterm(), bar:
        task = bar.add_task("shards", total=len(plan.parts))
        result = making.run_plan(plan, run_tasks, lambda _: bar.advance(task))
    print(*_describe_result(plan, result, data), sep="\n")
    return result.status


def _read_count(parsed: argparse.Namespace, name: str) -> int | None:
    """Return the value of a word as a number, or None if the word was not typed."""
    if (text := parsed.words.get(name)) is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: must be a whole number >= 1")
    return int(text)


def _choose_runner(parsed: argparse.Namespace) -> TaskRunner:
    """Return the function that makes shards here or on Ray, as EXECUTOR and RAY_ADDRESS say."""
    if parsed.executor == "local" and parsed.ray_address is None:
        return making.run_locally
    if parsed.executor != "ray":
        raise ConfigError(f"EXECUTOR={parsed.executor}: must be ray, or local without RAY_ADDRESS")
    try:
        from capsweep.shards.ray_tasks import run_on_ray
    except ImportError as error:
        raise ConfigError(f"EXECUTOR=ray: {error}; install ray or set EXECUTOR=local") from error
    return partial(run_on_ray, address=parsed.ray_address)


def _describe_content(
    content: DataSetContent, folder: Path, parts: Sequence[ShardPart]
) -> Iterator[str]:
    settings = ", ".join(f"{key} {value}" for key, value in content.settings.items())
    yield f"data set:    {content.dataset}, made from {content.origin.name}"
    yield f"settings:    {settings or 'none'}; generator version {content.version}"
    yield f"folder:      {folder}"
    yield f"fingerprint: {content.fingerprint}"
    for split, examples in content.splits.items():
        shards = sum(part.split == split for part in parts)
        yield f"{f'{split}:':<12} {count_of(examples, 'example')} in {count_of(shards, 'shard')}"


def _describe_plan(plan: MakingPlan) -> Iterator[str]:
    yield from _describe_content(plan.job.content, plan.folder, plan.parts)
    yield f"disk:        about {plan.missing_bytes:,} bytes to write, {plan.free:,} are free"
    if present := len(plan.parts) - len(plan.missing):
        yield f"finished:    {count_of(present, 'shard')} made before; each is checked"


def _describe_result(plan: MakingPlan, result: MakingResult, data: str) -> Iterator[str]:
    """Yield the lines that say what was made, what failed, and what to type next."""
    whole, total = len(result.shards), len(plan.parts)
    yield f"{count_of(result.made, 'shard')} made, {whole - result.made:,} kept, of {total:,}"
    for cause, names in result.failures.items():
        yield f"FAILED {len(names):,}: {', '.join(names[:3])}: {cause}"
    if result.status == FINISHED:
        yield f"complete: {plan.folder / INDEX}"
        yield f"train on it: {_make_train_command(plan.folder, read_manifest(plan.folder), data)}"
        return
    missing = f"{count_of(total - whole, 'shard')} missing"
    yield f"incomplete: {plan.folder}: {missing}; type the same command again to continue"


def _make_train_command(folder: Path, manifest: Manifest, data: str) -> str:
    """Return the command that trains on a data set of shards.

    If the data set is not a MultiMNIST, return a text that says that there is no command.

    Args:
        folder: The folder of the shards.
        manifest: The index of the shards.
        data: The folder of all data sets.
    """
    content = manifest.content
    if content.dataset != MULTIMNIST:
        return "no file of conf/dataset reads this data set"
    words = [f"dataset={SHARDS}", *declare_data_set(content), render("places.data", data)]
    dataset = compose.cell(words).config["dataset"]
    _, shape = manifest.fields["images"]
    if [*shape] != list(dataset["image_shape"]):
        words.append(render("dataset.image_shape", [*shape]))
    if (tests := content.splits.get("test", 0)) < dataset["batches"]["test_examples"]:
        words.append(f"dataset.batches.test_examples={tests}")
    place = folder.resolve()
    if is_url(data) or place != Path(data, content.dataset).resolve():
        words.append(render("dataset.shards.folders", [str(place)]))
    return shlex.join(["capsweep", "train", *words])


def run_verify(parsed: argparse.Namespace) -> int:
    """Print the content and the faults of a data set, and the command that trains on the data set.

    Returns:
        1 if a file is missing or altered, else 0.
    """
    manifest = read_manifest(parsed.path)
    print(*_describe_content(manifest.content, parsed.path, manifest.shards), sep="\n")
    data = _find_data(_list_places(parsed))
    print(f"train on it: {_make_train_command(parsed.path, manifest, data)}", flush=True)
    faults = verify.list_faults(parsed.path, manifest)
    print(*faults, sep="\n", end="\n" * bool(faults))
    verdict = count_of(len(faults), "fault") if faults else "complete"
    read = f"{manifest.content.dataset}, {count_of(len(manifest.shards), 'shard')}, all read"
    print(f"{parsed.path}: {verdict} ({read})")
    return 1 if faults else 0

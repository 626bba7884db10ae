"""Run a search to its last trial, and say what it chose."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console

from capsweep.config import places
from capsweep.errors import ConfigError, UserError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import executors, search
from capsweep.sweep import study as studies
from capsweep.sweep.cluster import Cluster
from capsweep.sweep.drive import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    UNFINISHED,
    RunOptions,
    SweepEnd,
    prepare_storage,
)
from capsweep.sweep.executors import Executor
from capsweep.sweep.more_seeds import open_memory
from capsweep.sweep.progress import ExpectedWork, SweepProgress, TimeLeft
from capsweep.sweep.search import StudySource
from capsweep.sweep.spec import Sweep
from capsweep.tracking import mode as modes
from capsweep.training.size import network_size


def run(sweep: Sweep, options: RunOptions, console: Console) -> SweepEnd:
    """Try what is left of the trials. Raises UserError naming key or file before any starts."""
    from capsweep.training import build  # it imports torch

    assert sweep.search is not None
    point = search.check(sweep)
    config = point.cell.config
    network_size(config)
    here = places.resolve(config["places"])
    ledger = Ledger(here.ledger)
    prepare_storage(here, ledger)
    build.build_source(config).check(str(here.data))
    execute = _executor(sweep, options, config["epochs"])
    mode, reason = modes.settle(config)
    study = studies.open_study(sweep, open_memory(here))
    seen = sum(trial.state.is_finished() for trial in studies.drawn(study, sweep))
    wanted = sweep.search.trials
    console.out(f"{sweep.name}: {sweep.question}\n{wanted} trials, {seen} seen before\n{reason}")
    names: dict[str, str] = {}
    left = TimeLeft({}, max(0, wanted - seen), ExpectedWork(1.0, config["epochs"]))
    progress = SweepProgress(console, names, left, sweep.search.metric)
    source = StudySource(sweep, study, ledger, progress, mode, options.limits, point)
    for line in options.limits.describe_bounds(None):
        console.out(line)
    source.names = names
    with progress, _named_faults():
        execute(source, here.storage / "ray", Cluster.of(config))
    taken = options.limits.describe_use()
    if not source.is_exhausted:
        return SweepEnd(INTERRUPTED, (*taken, "stopped; the same command goes on"))
    if source.failed:
        return SweepEnd(FAILED, (*taken, f"{len(source.failed)} trials failed"))
    if source.count_left:
        so_far = (
            f"{wanted - source.count_left} of {wanted} trials were seen; the same command goes on"
        )
        return SweepEnd(UNFINISHED, (*taken, f"{options.limits.stop_reason}: {so_far}"))
    return SweepEnd(FINISHED, (*taken, f"all {wanted} trials were seen"))


@contextmanager
def _named_faults() -> Iterator[None]:
    """A UserError as it was raised: Ray gives what a search raises as a traceback of its own."""
    try:
        yield
    except Exception as error:  # of whatever class Ray or Tune wrapped it in
        found: BaseException | None = error
        while found is not None and not isinstance(found, UserError):
            found = found.__cause__ or found.__context__
        if found is None:
            raise
        raise found from None


def _executor(sweep: Sweep, options: RunOptions, epochs: int) -> Executor:
    assert sweep.search is not None
    execute = executors.choose_executor(options.executor)
    if options.limits.bounds.budget is not None or options.part is not None:
        raise ConfigError(
            "--budget and --shard are for ablations; a search is bounded by trials, --max-hours "
            "and --max-gpu-hours"
        )
    if sweep.search.scheduler == "none":
        return execute
    if options.executor != "ray":
        raise ConfigError(
            f"EXECUTOR={options.executor}: search.scheduler asha needs EXECUTOR=ray; set it to none"
        )
    from capsweep.sweep.executors import ray_tune

    wanted = sweep.search
    scheduler = ray_tune.make_asha(
        wanted.metric, wanted.mode, epochs, wanted.grace_epochs, wanted.reduction_factor
    )
    return partial(ray_tune.execute, scheduler=scheduler)

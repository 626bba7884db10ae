"""`capsweep sweep`: run what is missing of a sweep, here or on a cluster, then print its table."""

import argparse
from collections.abc import Mapping
from typing import Any

from capsweep.cli import jobs, sweep_options
from capsweep.cluster import driver
from capsweep.config import places
from capsweep.config.words import split_words
from capsweep.errors import ConfigError, UserError
from capsweep.runtime import terminal
from capsweep.sweep import drive, limits, more_seeds
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


def run_sweep(parsed: argparse.Namespace) -> int:
    """Hand the sweep to its cluster, or run it here."""
    sweep, points, config = _load(parsed)
    for note in () if parsed.here else sweep.notes:  # once: where it was typed
        print(note, flush=True)
    if parsed.here and (words := driver.with_node_places(_list_words(parsed), config)) is not None:
        values, overrides = split_words("sweep", words)
        parsed = argparse.Namespace(**{**vars(parsed), "words": values, "overrides": overrides})
        sweep, points, config = _load(parsed)
    # What is wrong with these is said here, and not in the log of a job.
    limits.read_limits(parsed.budget, parsed.max_hours)
    if parsed.more_seeds is not None:
        more_seeds.plan_looks(sweep, parsed.more_seeds)  # known before the first cell is trained
    exit_status = _submit_sweep(parsed, sweep, config)
    if exit_status is not None:
        return exit_status
    with driver.interrupted_by_sigterm():
        return _run_here(sweep, points, parsed)


def _load(parsed: argparse.Namespace) -> tuple[Sweep, list[Point], Mapping[str, Any]]:
    """Return a sweep, its points, and the configuration of the first, which says where it runs.

    The points of a search are those that it is checked by.
    """
    sweep = sweep_options.load_sweep(parsed)
    points = sweep_options.list_points(sweep)
    return sweep, points, points[0].cell.config


def _run_here(sweep: Sweep, points: list[Point], parsed: argparse.Namespace) -> int:
    console = terminal.make_console()
    options = _read_options(parsed)  # one for both runs: its bounds are those of the command
    if sweep.search is not None:
        from capsweep.sweep import search

        ended = search.run(sweep, options, console)
    else:
        ended = drive.run_in_order(sweep, points, options, console)
        if parsed.more_seeds is not None and ended.status == drive.FINISHED:
            ended = drive.add_seeds(sweep, points, options, parsed.more_seeds, console)
    from capsweep.cli import report  # after training: its imports take time

    report.print_and_write(sweep, points, console)
    for line in ended.lines:
        print(line)
    return ended.status


def _read_options(parsed: argparse.Namespace) -> drive.RunOptions:
    if (parsed.executor == "array") != (parsed.shard is not None):
        raise UserError("EXECUTOR=array and SHARD=i/n belong together")
    if parsed.shard is not None and parsed.more_seeds is not None:
        raise UserError("MORE_SEEDS looks at all cells; it cannot be one job of an array")
    return drive.RunOptions(
        parsed.executor,
        limits.read_limits(parsed.budget, parsed.max_hours),
        None if parsed.shard is None else drive.ArrayPart.parse(parsed.shard),
        _reads_retry(parsed.retry),
    )


def _reads_retry(text: str | None) -> bool:
    if text not in (None, "failed"):
        raise UserError(f"RETRY={text}: must be failed, or left out")
    return text is not None


def _submit_sweep(
    parsed: argparse.Namespace, sweep: Sweep, config: Mapping[str, Any]
) -> int | None:
    """Hand a sweep to its cluster: an exit status. None: this process drives it.

    config: of its first cell. Raises ConfigError naming option or key.
    """
    cluster = config["cluster"]
    is_driven_here = parsed.here or parsed.shard is not None or parsed.executor == "local"
    if cluster.get("launcher") is not None and not is_driven_here:
        return _submit_to_slurm(parsed, config)
    if parsed.dry_run:
        raise ConfigError("--dry-run: nothing is submitted; `capsweep plan` prints the cells")
    if not parsed.here and (parsed.detach or cluster["submit"]):
        return _submit_job(parsed, sweep, config)
    if str(cluster["address"]).startswith("http"):
        raise ConfigError(
            f"RAY_ADDRESS={cluster['address']}: jobs are taken there; add --detach, or "
            "give the address of Ray itself, such as head:6379"
        )
    return None


def _submit_job(parsed: argparse.Namespace, sweep: Sweep, config: Mapping[str, Any]) -> int:
    """Submit the sweep, or find the job that runs it; attach unless --detach is given."""
    _check_executor(parsed, config)  # another would train, or lose results, on the head
    _read_options(parsed)  # a bad one is refused here, not in the log of the job
    server = jobs.open_jobs(config["cluster"])
    from capsweep.cluster import submit  # it imports Ray

    words = driver.make_inner_command(parsed.sweep, _list_words(parsed), config)
    job, is_new = submit.submit_sweep(server, sweep.path, words, config["cluster"]["python"])
    print(f"{'submitted' if is_new else 'this command runs already'}: {job.id}", flush=True)
    if not is_new and submit.runs_other_code(job, sweep.path):
        print(f"  it runs other code than that here; to run this: capsweep stop {job.id}")
    if not parsed.detach:
        return jobs.watch_job(server, job)
    place = f"SWEEP={job.id} RAY_ADDRESS={server.address}"
    print(f"make attach {place}  (its lines; status and stop likewise)")
    return 0


def _check_executor(parsed: argparse.Namespace, config: Mapping[str, Any]) -> None:
    if parsed.executor != "ray":
        cluster = f"cluster={config['cluster']['name']}"
        raise ConfigError(f"EXECUTOR={parsed.executor}: {cluster} is driven by a job of Ray")


def _submit_to_slurm(parsed: argparse.Namespace, config: Mapping[str, Any]) -> int:
    from capsweep.cluster import slurm

    cluster, is_array = _without_requeues(parsed, config), parsed.executor == "array"
    if not is_array:
        _check_executor(parsed, config)
    words = driver.make_inner_command(parsed.sweep, _list_words(parsed), config, staged=False)
    folder = places.resolve(config["places"]).storage / "clusters" / cluster["name"]
    name, text = slurm.render_script(cluster, parsed.sweep, words, folder, is_array)
    if parsed.dry_run:
        print(f"# ---- {folder / name}, for sbatch --parsable\n{text}")
        return 0
    return slurm.submit_script(cluster, name, text, folder, print)


def _list_words(parsed: argparse.Namespace) -> list[str]:
    return [*(f"{name}={value}" for name, value in parsed.words.items()), *parsed.overrides]


def _without_requeues(parsed: argparse.Namespace, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cluster, without requeues where a second run would begin from the start.

    Its hours would count again, or its finished cells would run again.
    """
    bounds = (parsed.budget, parsed.max_hours)
    if config["rerun"] != "always" and all(bound is None for bound in bounds):
        return config["cluster"]
    print("# a bound, or RERUN=always: it is run once, and not again when its nodes are taken")
    return {**config["cluster"], "requeues": 0, "retries": 0}

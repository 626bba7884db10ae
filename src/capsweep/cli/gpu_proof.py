"""`capsweep gpu-proof`: everything that needs a GPU, part after part, each bounded in time.

STORAGE/gpu-proof.json says how each part ended. The same command goes on: what is done, by the same
code, configurations and torch on the same device, is not run again.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsweep import terminal
from capsweep.cli import gpu_proof_parts, gpu_proof_table
from capsweep.cli.gpu_proof_parts import DONE, FAILED, OUT_OF_TIME, SKIPPED, Part
from capsweep.cli.gpu_proof_table import CLOSING, TableSize
from capsweep.cli.ledger import find_storage
from capsweep.cluster import driver
from capsweep.config import code_identity, package_files
from capsweep.config.places import absolute, folder_of, ledger_of
from capsweep.errors import DamageError, UserError
from capsweep.ledger.ledger import Ledger
from capsweep.report import grid
from capsweep.storage.files import hash_bytes, write_json

NAME = "gpu-proof"
KEPT, LOST, LEFT = 0, 1, 3  # exit statuses; LEFT as of a sweep that its bound ended
CONDITIONS = (
    "import json; from capsweep.bench import machine; print(json.dumps(machine.read_conditions()))"
)
CONDITIONS_SECONDS = 120.0


@dataclass(frozen=True)
class Options:
    """As typed."""

    storage: Path
    data_dir: str | None
    is_rehearsal: bool

    @property
    def work(self) -> Path:
        """What the parts write, but for what sweeps store."""
        return self.storage / (f"{NAME}-rehearsal" if self.is_rehearsal else NAME)

    @property
    def results(self) -> Path:
        """The storage of sweeps; a rehearsal has its own."""
        return self.work if self.is_rehearsal else self.storage

    @property
    def environment(self) -> dict[str, str]:
        """Of the parts."""
        places = {"STORAGE": str(self.results)}
        if self.data_dir is not None:
            places["DATA_DIR"] = self.data_dir
        return {**os.environ, **places, "PYTHONUNBUFFERED": "1"}


def run_gpu_proof(parsed: argparse.Namespace) -> int:
    """0 when every part is done and every bar kept; 3 when parts lack time; else 1. Bars of a
    rehearsal do not count. With --publish a page is renewed, and nothing is run.
    """
    storage = folder_of(find_storage(parsed))
    if parsed.publish is not None:
        from capsweep.bench import proof_page  # it imports torch

        source = parsed.source or storage / f"{NAME}.json"
        proof_page.publish_proof(Path(parsed.publish), source, read_state(source))
        return KEPT
    ends_at = time.monotonic() + 60 * parsed.minutes
    data_dir = None if parsed.data_dir is None else absolute(parsed.data_dir)
    options = Options(storage, data_dir, parsed.rehearse)
    with driver.interrupted_by_sigterm():
        conditions = read_conditions(options)
        if not options.is_rehearsal:
            data = options.environment.get("DATA_DIR", str(options.results / "data"))
            gpu_proof_table.check_images(data)
        proof = Proof(options, conditions)
        proof.run_parts(ends_at)
    return proof.report_end()


def read_conditions(options: Options) -> dict[str, Any]:
    """Of the machine, read by a process of its own.

    Raises UserError where they cannot be read, and without a GPU, but for a rehearsal.
    """
    log = options.work / "conditions.log"
    words = [sys.executable, "-c", CONDITIONS]
    status = gpu_proof_parts.run_command(words, CONDITIONS_SECONDS, log, options.environment)
    if status != 0:
        lines = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
        raise UserError(f"this machine cannot be described; {log} ends with:\n{lines}")
    (line,) = [line for line in log.read_bytes().splitlines() if line.startswith(b"{")]
    conditions = json.loads(line)
    if conditions["device"] != "cuda" and not options.is_rehearsal:
        version = conditions["versions"]["torch"]
        raise UserError(f"torch {version} sees no GPU here; --rehearse tries the command without")
    return conditions


def hash_configs() -> str:
    """12 hexadecimal digits: all of conf/."""
    folder = package_files.find_folder("conf")
    paths = sorted((str(path.relative_to(folder)), path) for path in folder.rglob("*.yaml"))
    texts = [(name, path.read_text(encoding="utf-8")) for name, path in paths]
    return hash_bytes(repr(texts).encode())[:12]


def read_state(path: Path) -> dict[str, Any]:
    """What an earlier call wrote. Raises UserError naming the file."""
    try:
        state = json.loads(path.read_bytes())
        if not {"rehearsal", "made_by", "conditions", "table", "parts"} <= state.keys():
            raise ValueError("it was not written by capsweep gpu-proof")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run capsweep gpu-proof first") from error
    except (ValueError, AttributeError) as error:
        raise DamageError(f"{path}: {error}; remove it, or name another file") from error
    return state


class Proof:
    """How the parts ended so far, kept in a file after each."""

    def __init__(self, options: Options, conditions: Mapping[str, Any]) -> None:
        self.options = options
        self.path = options.work.with_suffix(".json")
        hardware = conditions["hardware"]
        self.state: dict[str, Any] = {
            "rehearsal": options.is_rehearsal,
            "made_by": {
                "device": ", ".join(hardware["gpus"]) or hardware["processor"],
                "code": code_identity.hash_package(),
                "configurations": hash_configs(),
                "torch": conditions["versions"]["torch"],
            },
            "conditions": conditions,
            "table": None,
            "parts": {},
        }
        if self.path.exists():
            self._take_over(read_state(self.path))
        self.parts = gpu_proof_parts.list_parts(
            options.work,
            options.results / f"{NAME}-cells.tar",
            self.list_sweep_choices,
            Ledger(ledger_of(str(options.results), None)),
            options.is_rehearsal,
        )

    def _take_over(self, earlier: Mapping[str, Any]) -> None:
        """What counts of an earlier call; the size of the table does for all but another device."""
        before, now = earlier["made_by"], self.state["made_by"]
        others = [f"{name} {before[name]}" for name in now if before[name] != now[name]]
        if before["device"] == now["device"]:
            self.state["table"] = earlier["table"]
        if others:
            print(f"{self.path}: is of {', '.join(others)}; all parts are run anew", flush=True)
        else:
            self.state["parts"] = earlier["parts"]

    def list_sweep_choices(self) -> list[str]:
        """The words of its sweep; none until its size is chosen, when it first begins."""
        if self.state["table"] is None:
            return []
        size = TableSize(**self.state["table"])
        return gpu_proof_table.list_sweep_choices(size, self.options.is_rehearsal)

    def run_parts(self, ends_at: float) -> None:
        """Until this time of the monotonic clock. What was not tried, or goes on, comes before what
        failed; the export comes last.
        """
        *parts, export = self.parts
        for part in [*sorted(parts, key=self._has_failed), export]:
            if self._get_status(part) == DONE and not part.is_repeated:
                print(f"{part.name}: done by an earlier call", flush=True)
                continue
            has_begun = part.takes_rest and self.state["table"] is not None
            bound = gpu_proof_parts.choose_bound(part, ends_at - time.monotonic(), has_begun)
            if bound is None:
                print(f"{part.name}: not started, too little time is left", flush=True)
                continue
            self._run_part(part, bound)

    def _run_part(self, part: Part, bound: float) -> None:
        terminal.announce(f"{part.name}: at most {bound:.0f} s")
        if part.takes_rest and self.state["table"] is None:
            self.state["table"] = asdict(self._choose_size(bound - CLOSING))
            write_json(self.path, self.state)
        log = self.options.work / f"{part.name}.log"
        entry = gpu_proof_parts.run_part(part, bound, log, self.options.environment)
        self.state["parts"][part.name] = entry
        write_json(self.path, self.state)
        taken = grid.format_duration(entry["seconds"])
        print(f"{part.name}: {entry['status']}, {taken}", flush=True)
        for line in (entry["cause"] or "").splitlines()[-3:]:
            print(f"    {line}", flush=True)
        for line in [] if self.options.is_rehearsal else list_missed(entry):
            print(f"    MISSED: {line}", flush=True)

    def _choose_size(self, seconds: float) -> TableSize:
        if self.options.is_rehearsal:
            return TableSize(1, 1, 1)
        speed = gpu_proof_table.find_speed(self.state["parts"])
        return gpu_proof_table.choose_size(speed, seconds)

    def _get_status(self, part: Part) -> str | None:
        return self.state["parts"].get(part.name, {}).get("status")

    def _has_failed(self, part: Part) -> bool:
        return self._get_status(part) in (FAILED, OUT_OF_TIME)

    def _lacks_time(self, part: Part) -> bool:
        """Whether another call may do what this one did not."""
        status = self._get_status(part)
        cut = self.state["parts"].get(part.name, {}).get("bound", 0) < part.bound
        return status not in (DONE, FAILED, SKIPPED) and (status != OUT_OF_TIME or cut)

    def report_end(self) -> int:
        """Print what remains and where all is; the exit status."""
        left = [part.name for part in self.parts if self._lacks_time(part)]
        lost = [part.name for part in self.parts if self._has_failed(part)]
        missed = [line for entry in self.state["parts"].values() for line in list_missed(entry)]
        if lost:
            print(f"failed: {', '.join(lost)}; the reasons are in {self.path}")
        if left:
            print(f"remains: {', '.join(left)}; the same command goes on")
        print(f"written: {self.path}")
        if left:
            return LEFT
        return LOST if lost or (missed and not self.options.is_rehearsal) else KEPT


def list_missed(entry: Mapping[str, Any]) -> Sequence[str]:
    """The bars of a part that are missed, with their numbers."""
    bars = entry["content"].get("measured", [])
    return [
        f"{bar['what']}: {float(bar['value']):.3g} {bar['unit']}, "
        f"{'at least' if bar['at_least'] else 'at most'} {bar['bar']:g}"
        for bar in bars
        if bar["verdict"] == "missed"
    ]

"""How much memory calls take, measured in a process of their own.

`python -m capsweep.bench.extra_memory growth|peak module:function [arguments as JSON]`: the
function prepares calls and returns them; printed is by how much the process grows in each, beyond
what was there before, or how large it is at most with all there is in it. In bytes.
"""

import ctypes
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from capsweep.bench import device
from capsweep.training import memory


def of(preparation: str, *arguments: object) -> list[int]:
    """Bytes by which the memory of a fresh process grows, at its peak, in each of the calls that
    `preparation` (module:function) returns for these arguments. Raises RuntimeError where it fails.
    """
    return _asked("growth", preparation, arguments)


def peak(preparation: str, *arguments: object) -> int:
    """Bytes that are resident at most in a fresh process, interpreter and libraries included, which
    prepares these calls and makes them. Raises RuntimeError where it fails.
    """
    return _asked("peak", preparation, arguments)


def _asked(what: str, preparation: str, arguments: Sequence[object]) -> Any:
    command = [sys.executable, "-m", __name__, what, preparation, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{preparation}{arguments}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def growth(call: Callable[[], object]) -> int:
    """Bytes by which this process, or on a GPU what it has allocated there, grows in one call."""
    _give_back()
    device.wait()
    memory.start_peak()
    kind = "gpu" if device.on_gpu() else "process"
    before = _known(memory.now()[kind])
    call()
    device.wait()
    return max(0, _known(memory.peak()[kind]) - before)


def largest(calls: Sequence[Callable[[], object]]) -> int:
    """Bytes that were resident at most in this process, once these calls are made too."""
    for call in calls:
        call()
    return _known(memory.peak()["process"])


def _known(size: int | None) -> int:
    if size is None:
        raise RuntimeError("this system does not say its peak memory: run on Linux")
    return size


def _give_back() -> None:
    """Free memory that the allocator keeps would be used by the call without being seen to grow.

    glibc alone can be asked to return it; what else there is overlooks such memory.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _main(what: str, preparation: str, arguments: str) -> None:
    with device.threads():
        calls = pkgutil.resolve_name(preparation)(*json.loads(arguments))
        found = largest(calls) if what == "peak" else [growth(call) for call in calls]
        print(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])

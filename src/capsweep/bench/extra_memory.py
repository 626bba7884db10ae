"""How much memory a call adds to what is there before it, measured in a process of its own.

`python -m capsweep.bench.extra_memory module:function [arguments as JSON]`: the function prepares
calls and returns them; the growth in each is printed, in bytes.
"""

import ctypes
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable

from capsweep.bench import device
from capsweep.training import memory


def of(preparation: str, *arguments: object) -> list[int]:
    """Bytes by which the memory of a fresh process grows, at its peak, in each of the calls that
    `preparation` (module:function) returns for these arguments. Raises RuntimeError where it fails.
    """
    command = [sys.executable, "-m", __name__, preparation, json.dumps(arguments)]
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
    before = memory.now()[kind]
    call()
    device.wait()
    peak = memory.peak()[kind]
    if before is None or peak is None:
        raise RuntimeError("this system does not say its peak memory: run on Linux")
    return max(0, peak - before)


def _give_back() -> None:
    """Free memory that the allocator keeps would be used by the call without being seen to grow.

    glibc alone can be asked to return it; what else there is overlooks such memory.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _main(preparation: str, arguments: str) -> None:
    with device.threads():
        calls = pkgutil.resolve_name(preparation)(*json.loads(arguments))
        print(json.dumps([growth(call) for call in calls]))


if __name__ == "__main__":
    _main(*sys.argv[1:])

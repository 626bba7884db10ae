"""How much memory one call adds to what is there before it, measured in a process of its own.

`python -m capsweep.bench.extra_memory module:function [arguments as JSON]`: the function prepares
the call and returns it; the growth of the call is printed, in bytes.
"""

import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable

from capsweep.bench import device
from capsweep.training import memory


def of(preparation: str, *arguments: object) -> int:
    """Bytes by which the memory of a fresh process grows in the call that `preparation`
    (module:function) returns for these arguments, at its peak. Raises RuntimeError where it fails.
    """
    command = [sys.executable, "-m", __name__, preparation, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{preparation}{arguments}: {done.stderr.strip()}")
    return int(done.stdout.split()[-1])


def growth(call: Callable[[], object]) -> int:
    """Bytes by which this process, or on a GPU what it has allocated there, grows in one call."""
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


def _main(preparation: str, arguments: str) -> None:
    with device.threads():
        print(growth(pkgutil.resolve_name(preparation)(*json.loads(arguments))))


if __name__ == "__main__":
    _main(*sys.argv[1:])

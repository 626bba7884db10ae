"""EM routing: training steps of the matrix capsule network, against the reference, and memory.

Speeds are of the fastest step of each version, taken turn by turn in one process; memory is the
peak of a process started for it.
"""

from collections.abc import Mapping

from capsweep.bench import machine
from capsweep.bench.candidates import check_parity, time_in_turns
from capsweep.bench.results import BenchReport, Measured
from capsweep.bench.step import StepCandidate, StepTraining
from capsweep.training.devices import using_threads

BATCH = 8
NETWORK = ("model=matrix_capsnet", "routing=em", "dataset=smallnorb", "loss=spread")
SIZES: Mapping[str, tuple[str, ...]] = {
    "64,8,16,16": (),
    "32,32,32,32": (
        "model.conv.channels=32",
        "model.primary.types=32",
        "model.capsules.types=[32,32]",
    ),
}
FASTEST = {2: 60.0, 3: 45.0}  # images a second, by routing iterations
LARGEST = {"64,8,16,16": 0.75, "32,32,32,32": 2.0}  # GB
TOLERANCE = 1e-4  # of the parity gate, in single precision
NOTE = f"Steps (forward, spread loss, backward, Adam) on {BATCH} images of smallNORB's size."


def make_training(impl: str, num_iters: int, size: str = "64,8,16,16") -> StepTraining:
    """The network of a size in training."""
    overrides = (*NETWORK, f"routing.num_iters={num_iters}", *SIZES[size])
    return StepTraining(StepCandidate(impl, overrides=overrides), BATCH)


def measure_em(steps: int = 30) -> BenchReport:
    """Speed at two and three iterations, and memory at three. Raises ParityError, before
    anything is measured, where the versions do not compute the same.
    """
    measured: list[Measured] = []
    with using_threads(machine.THREADS):
        for num_iters, bar in FASTEST.items():
            fast, reference = (make_training(impl, num_iters) for impl in ("fast", "reference"))
            check_parity(reference.compute_results(), {"fast": (fast.compute_results(), TOLERANCE)})
            calls = {"fast": fast.run_step, "reference": reference.run_step}
            seconds = time_in_turns(calls, budget=0, least=steps)
            what = f"EM routing, T = {num_iters}: training"
            speed, slower = (BATCH / min(seconds[name]) for name in calls)
            skipped = machine.reason_to_skip(speed)
            measured += [
                Measured(what, speed, "images/s", bar, at_least=True, skipped=skipped),
                Measured(f"{what} over the reference", speed / slower, "x"),
            ]
    for size, bar in LARGEST.items():
        peak = machine.call_in_fresh_process(train_and_measure_peak, size)
        what = f"EM routing, T = 3, {size}: peak memory"
        measured.append(Measured(what, peak / 1e9, "GB", bar))
    return BenchReport(measured, notes=[NOTE])


def train_and_measure_peak(size: str) -> int:
    """The largest memory in bytes that this process has had, after three steps."""
    with using_threads(machine.THREADS):
        training = make_training("fast", 3, size)
        for _ in range(3):
            training.run_step()
        return machine.peak_of_process()

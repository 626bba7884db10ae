"""Calls in processes of their own, and the memory that each needs.

What a process keeps of the memory that it freed makes its next call faster, and its peak is that of
all that it ever did: candidates that shared one could not be told apart.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from capsweep.lab.bench import machine
from capsweep.lab.bench.comparison import CandidateError, describe_error
from capsweep.training import devices

PAUSE = 0.03  # seconds; threads of OpenMP wait busily for 10 ms after they have computed
Call = Callable[[], object]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Failure:
    """The answer of a process that could not give one."""

    cause: str


class RemoteCall:
    """A call in a process of its own, which computes only while it is asked.

    The process makes the call by `prepare(*arguments)`.

    Attributes:
        peak: the largest number of bytes so far, resident in the process, or reserved on a GPU.
        seconds: of each call so far.
    """

    def __init__(self, prepare: Callable[..., Call], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        answer = theirs, prepare, arguments
        self.process = context.Process(target=_answer_questions, args=answer, daemon=True)
        self.process.start()
        theirs.close()
        self.seconds: list[float] = []
        self.peak = 0

    def __call__(self, repeats: int = 1) -> float:
        """Return the seconds of one call, the mean of so many, as the process measures them."""
        seconds, self.peak = self.ask(partial(_time_call, repeats))
        self.seconds.append(seconds)
        return seconds

    def ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Return what `question`, a function of a module, answers there when given the call.

        Raises CandidateError with the cause where it fails there; the process has printed more.
        """
        (answer,) = ask_each([self], question)
        if isinstance(answer, CandidateError):
            raise answer
        return answer

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


def ask_each(
    calls: Sequence[RemoteCall], question: Callable[[Any], Answer]
) -> list[Answer | CandidateError]:
    """Return what each process answers, or why it cannot. All compute at the same time."""
    for call in calls:
        with suppress(ConnectionError):
            call.connection.send(question)
    answers = []
    for call in calls:
        try:
            answer = call.connection.recv()
        except (EOFError, ConnectionError):
            answer = _Failure("its process ended, see above")
        answers.append(CandidateError(answer.cause) if isinstance(answer, _Failure) else answer)
    return answers


@contextmanager
def start_calls(
    candidates: Mapping[str, tuple[Any, ...]], is_awaited: bool = True
) -> Iterator[dict[str, RemoteCall]]:
    """Start a process for each candidate, `prepare` and its arguments; they end here, always.

    is_awaited: all of them are prepared first, and one that fails in that raises.
    """
    with ExitStack() as stack:
        calls: dict[str, RemoteCall] = {}
        for name, candidate in candidates.items():
            calls[name] = RemoteCall(*candidate)
            stack.callback(calls[name].end)
        for call in calls.values() if is_awaited else ():
            call.ask(bool)  # it is prepared when it answers
        yield calls


def measure_extra_memory(prepare: Callable[..., Call], *arguments: Any) -> int:
    """Return by how many bytes a fresh process grows at the peak of a call.

    `prepare` returns the call for these arguments. On a GPU what is allocated there counts.
    """
    with start_calls({"call": (prepare, *arguments)}) as calls:
        return calls["call"].ask(_measure_growth)


def _answer_questions(asked: Connection, prepare: Callable[..., Call], arguments: Any) -> None:
    """Answer what is asked, until the process that asks has ended."""
    torch.set_num_threads(machine.THREADS)
    call = _try(prepare, *arguments)
    with suppress(EOFError):
        while True:
            question = asked.recv()
            asked.send(call if isinstance(call, _Failure) else _try(question, call))


def _try(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # whatever it is, the one who asks is told
        traceback.print_exc()
        return _Failure(describe_error(error))


def _time_call(repeats: int, call: Call) -> tuple[float, int]:
    time.sleep(PAUSE)
    seconds = machine.time_call(lambda: [call() for _ in range(repeats)]) / repeats
    return seconds, devices.read_memory_peak()["gpu" if machine.is_gpu() else "process"] or 0


def _measure_growth(call: Call) -> int:
    devices.start_memory_peak()
    if machine.is_gpu():  # what is reserved grows by blocks, which would hide how much was needed
        before = torch.cuda.memory_allocated()
        machine.time_call(call)
        return torch.cuda.max_memory_allocated() - before
    before = devices.read_resident() or 0
    machine.time_call(call)
    return max(0, (devices.read_memory_peak()["process"] or 0) - before)

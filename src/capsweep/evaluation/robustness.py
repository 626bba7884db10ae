"""A trained cell under attack: its test examples in parts, the counts added, told as plain data.

Shape letters: M test examples, N classes.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from capsweep.config import code_identity
from capsweep.errors import UserError
from capsweep.evaluation import attack, surface
from capsweep.evaluation.attack import Attack, Count
from capsweep.evaluation.stored import as_stored
from capsweep.evaluation.surface import SCALES
from capsweep.evaluation.trained import Trained, batches

PART = 100  # examples attacked together; random starts are drawn for each part


def aim(targeted: bool) -> str:
    """The word for it."""
    return "targeted" if targeted else "untargeted"


@dataclass(frozen=True)
class Asked:
    """What is asked of every cell. examples: the first so many; None: all that it was tested on.

    scale: of eps, see `surface.of`. steps, restarts: of methods that take more than one.
    """

    methods: tuple[str, ...]
    eps: tuple[float, ...]
    targeted: bool
    scale: str
    steps: int
    restarts: int
    examples: int | None

    def check(self) -> None:
        """Raise UserError naming the option that cannot be meant."""
        if self.scale not in SCALES:
            raise UserError(f"--eps-scale must be one of {', '.join(SCALES)}, got {self.scale}")
        if self.examples is not None and self.examples < 1:
            raise UserError(f"--examples must be >= 1, got {self.examples}")
        for method in self.methods:
            self.attacks(method, seed=0)

    def attacks(self, method: str, seed: int) -> list[Attack]:
        """One for each eps."""
        return [
            attack.make(method, eps, self.targeted, self.steps, self.restarts, seed)
            for eps in self.eps
        ]


@dataclass(frozen=True)
class Answer:
    """A cell under one method. counts: of each attack; ties: examples of which the highest score is
    another than stored, and which are too near a tie to mean it.
    """

    method: str
    targeted: bool
    scale: str
    bounds: str
    examples: int
    clean_accuracy: float
    ties: int
    attacks: tuple[Attack, ...]
    counts: tuple[Count, ...]

    @property
    def flat(self) -> int:
        """Tries in which the loss had no gradient at the image."""
        return sum(found.flat for found in self.counts)

    @property
    def rates(self) -> list[float]:
        """What is told of each eps: the accuracy left, or targeted the rate of success."""
        if self.targeted:
            return [found.rate for found in self.counts]
        return [(found.tries - found.successes) / found.tries for found in self.counts]

    @property
    def file(self) -> str:
        """A name of its own for every setting."""
        settings = [[asdict(one) for one in self.attacks], self.scale, self.examples]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        return f"attack-{self.method}-{aim(self.targeted)}-{digest}.json"

    def as_json(self, device: torch.device) -> dict[str, Any]:
        """Everything, for `evals/`."""
        told = "success_rate" if self.targeted else "accuracy"
        return {
            "method": self.method,
            "aim": aim(self.targeted),
            "eps_scale": self.scale,
            "bounds": self.bounds,
            "examples": self.examples,
            "clean_accuracy": self.clean_accuracy,
            "ties": self.ties,
            "attacks": [
                {**asdict(one), "step": one.step, **asdict(found), told: rate}
                for one, found, rate in zip(self.attacks, self.counts, self.rates, strict=True)
            ],
            "device": str(device),
            "code": code_identity.package(),
        }


def measure(
    trained: Trained, asked: Asked, stored: tuple[np.ndarray, np.ndarray]
) -> Iterator[Answer]:
    """The cell under each method, after proof that clean it is what its stored scores [M, N] and
    labels [M] say. Raises UserError naming the cell.
    """
    clean = as_stored(trained, stored, asked.examples)
    parts = list(batches(clean.examples, PART))
    for method in asked.methods:
        attacks = asked.attacks(method, trained.config["seed"])
        try:
            first = surface.of(trained.test, parts[0], asked.scale)
        except UserError as error:
            raise UserError(f"{trained.name}: {error}") from error
        counts = [
            reduce(add, (_count(trained, asked, part, one) for part in parts)) for one in attacks
        ]
        yield Answer(
            method=method,
            targeted=asked.targeted,
            scale=asked.scale,
            bounds=first.bounds,
            examples=clean.examples,
            clean_accuracy=clean.accuracy,
            ties=clean.ties,
            attacks=tuple(attacks),
            counts=tuple(counts),
        )


def _count(trained: Trained, asked: Asked, part: slice, one: Attack) -> Count:
    shown = surface.of(trained.test, part, asked.scale)
    return attack.count(trained, shown, one, part.start)

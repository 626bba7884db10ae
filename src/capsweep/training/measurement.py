"""What a few training steps say of a cell's cost, by its shape and the hardware it ran on."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """Seconds of one training step and of evaluating one image, seconds before the first step, and
    peak memory in bytes ("process" and "gpu", None where unknown). utilisation: of the GPU, 0..1.
    """

    shape: str
    hardware: str
    seconds_per_step: float
    evaluation_seconds_per_image: float
    startup_seconds: float
    peak_memory_bytes: dict[str, int | None]
    utilisation: float | None
    device_memory_bytes: int | None
    steps: int

    @property
    def name(self) -> str:
        """The file of the ledger that holds it."""
        hardware = hashlib.sha256(self.hardware.encode()).hexdigest()[:8]
        return f"measurements/{self.shape}-{hardware}.json"

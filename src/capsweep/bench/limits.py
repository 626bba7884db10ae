"""What this machine can do at most, measured in the same run: matrix products, and copies."""

from statistics import median

import torch

from capsweep.bench import device

SIZE = 2048  # rows and columns of the product
COPIED = 256 * 2**20  # bytes: more than any cache


def matmul(dtype: torch.dtype = torch.float32, times: int = 5) -> float:
    """Floating-point operations a second of a product of two square matrices."""
    a, b = (torch.randn(SIZE, SIZE, device=device.device()).to(dtype) for _ in range(2))
    out = torch.zeros_like(a)
    torch.matmul(a, b, out=out)
    taken = [device.seconds(lambda: torch.matmul(a, b, out=out)) for _ in range(times)]
    return 2 * SIZE**3 / median(taken)


def copy(times: int = 5) -> float:
    """Bytes a second, read and written, of a copy."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device.device())
    target = torch.zeros_like(source)
    target.copy_(source)
    taken = [device.seconds(lambda: target.copy_(source)) for _ in range(times)]
    return 2 * COPIED / median(taken)


def told(products: dict[str, torch.dtype]) -> dict[str, float]:
    """For a report: what the products reach that it names, and copies."""
    found = {f"matmul {name}, GFLOP/s": matmul(dtype) / 1e9 for name, dtype in products.items()}
    return found | {"copy, GB/s": copy() / 1e9}

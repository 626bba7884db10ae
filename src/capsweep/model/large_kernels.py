"""Convolutions with large kernels by fewer multiplications, exact up to rounding.

1. A stride S splits an image into S x S phases x[S i + p, S j + q]. They are the channels of a
   convolution of stride 1, whose kernel has k = ceil(K / S) taps along an axis.
2. m x m outputs see a tile of n x n positions, n = m + k - 1. They are the first outputs of the
   cyclic correlation of length n; nothing wraps around in these.
3. The discrete Fourier transform makes the cyclic correlation diagonal: Y = X V at each frequency,
   where V is the conjugate of the transformed weights. Half of the frequencies are enough, because
   the numbers are real.
4. A complex product takes three real products: k1 = (Xr + Xi) Vr, k2 = Xr (Vi - Vr),
   k3 = Xi (Vr + Vi) give Yr = k1 - k3 and Yi = k1 + k2.

All sums are linear in the image, in the weights or in the outputs. The convolution is therefore a
bilinear form with three fixed matrices, y = Ty' [(Tx x) * (Tw w)], with 3 n^2 / 2 products for m^2
outputs of an input and an output channel. Summed over input channels, each of these components is
one matrix product. The gradients use the same matrices: gx = Tx' [(Ty g) * (Tw w)] and
gw = Tw' [(Ty g) * (Tx x)].

n is even, so that frequencies 0 and n / 2 are both real and the rows of frequencies form pairs. A
matrix is then one transform of the rows of a tile, and one transform of the columns of each pair.

Sources: Winograd, "Arithmetic Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms
for Convolutional Neural Networks" (2016).

Shape letters: B images, H W pixels, C channels, O output channels, T tiles of all images; n as
above, p positions of a tile, F components of a pair of rows, 3 n.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_KERNEL = 4
LARGEST_TILE = 24  # positions along an axis; larger tiles need more memory and save no time
# Three combinations of the real and the imaginary part of a frequency. Those of outputs are doubled
# for the mirrored frequency.
IMAGE = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
WEIGHTS = ((1.0, 0.0), (-1.0, -1.0), (1.0, -1.0))
OUTPUTS = ((2.0, 2.0), (0.0, 2.0), (-2.0, 0.0))


def find_direct_cost() -> float:
    """Return the cost of a multiplication in a direct convolution on this processor.

    The unit is a multiplication in a product of large matrices. Where a processor has AVX-512,
    oneDNN convolves with it. MKL multiplies matrices with AVX2 on all AMD processors; from Zen 5 on
    this is half as fast as AVX-512. Zen 5 is recognised by AVX-VNNI, which earlier AMD processors
    lack.
    """
    capabilities = torch.cpu.get_capabilities()
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    is_whole = is_amd and bool(capabilities.get("avx_vnni"))
    return 0.9 if is_whole and torch.backends.cpu.get_cpu_capability() == "AVX512" else 1.8


# Costs, in multiplications of large matrices: a multiplication of a direct convolution, and the
# transform of a number. Channels are rounded up to whole steps. All three are fitted to results of
# `capsweep bench convolution`.
DIRECT_COST, TRANSFORM_COST, CHANNEL_STEP = find_direct_cost(), 110.0, 32


@dataclass(frozen=True)
class Tiling:
    """A tiling of the outputs of a convolution with a square kernel.

    Attributes:
        kernel: Height and width of the kernel, K.
        stride: Stride along both axes, S.
        outputs: Outputs of a tile along an axis, m.
    """

    kernel: int
    stride: int
    outputs: int

    @property
    def taps(self) -> int:
        """The taps of a phase's kernel along an axis, k."""
        return -(-self.kernel // self.stride)

    @property
    def positions(self) -> int:
        """The positions of a tile along an axis, n."""
        return self.outputs + self.taps - 1

    @property
    def components(self) -> int:
        """The number of products of a tile for one input and one output channel."""
        return 3 * self.positions**2 // 2

    def count_tiles(self, places: int) -> int:
        """Return the number of tiles along an axis with `places` outputs."""
        return -(-places // self.outputs)


class Transform(NamedTuple):
    """One of the three matrices of the bilinear form, [3 n^2 / 2, p^2], in two factors.

    Attributes:
        rows_np: Transform of the rows of a tile.
        columns: Transform of each pair of transformed rows, [n / 2, F, 2 p].
    """

    rows_np: Tensor
    columns: Tensor

    def to(self, dtype: torch.dtype) -> "Transform":
        """Convert both factors to another type of number."""
        return Transform(self.rows_np.to(dtype), self.columns.to(dtype))


@lru_cache
def make_transforms(tiling: Tiling, dtype: torch.dtype) -> tuple[Transform, Transform, Transform]:
    """Compute the transforms of image, weights and outputs in float64, and round them to a type."""
    sizes = (tiling.positions, IMAGE), (tiling.taps, WEIGHTS), (tiling.outputs, OUTPUTS)
    image, weights, outputs = (_make_transform(tiling.positions, *size) for size in sizes)
    outputs = Transform(outputs.rows_np, outputs.columns / tiling.positions**2)
    return image.to(dtype), weights.to(dtype), outputs.to(dtype)


def _make_transform(
    length: int, positions: int, combination: tuple[tuple[float, ...], ...]
) -> Transform:
    frequency_n, position_p = (
        torch.arange(count, dtype=torch.float64) for count in (length, positions)
    )
    angle_np = 2 * math.pi / length * torch.outer(frequency_n, position_p)
    cos_np, sin_np, half = torch.cos(angle_np), torch.sin(angle_np), length // 2
    # Real and imaginary part of each frequency of numbers x, and of numbers x + i y.
    of_real = torch.stack([cos_np, -sin_np], dim=1)
    of_complex = torch.cat([of_real, torch.stack([sin_np, cos_np], dim=1)], dim=2)
    combined = torch.tensor(combination, dtype=torch.float64)
    real = torch.cat([(combined @ of_real[1:half]).flatten(0, 1), cos_np[[0, half]]])
    first_pair = torch.cat([torch.block_diag(real, real), torch.zeros(2, 2 * positions)])
    columns = [first_pair, *[(combined @ of_complex).flatten(0, 1)] * (half - 1)]
    rows_np = torch.cat([cos_np[[0, half]], of_real[1:half].flatten(0, 1)])
    return Transform(rows_np, torch.stack(columns))


def choose_tiling(
    kernel: int,
    stride: int,
    channels: tuple[int, int],
    batch: int,
    places: tuple[int, int],
    always: bool = False,
) -> Tiling | None:
    """Choose the tiling with the least expected cost.

    Args:
        kernel: Height and width of the kernel.
        stride: Stride along both axes.
        channels: Numbers of input and output channels.
        batch: Number of images.
        places: Rows and columns of outputs.
        always: Whether to choose a tiling even if a direct convolution is expected to be faster.

    Returns:
        The tiling, or None if a direct convolution is expected to be faster and `always` is not
        set.
    """
    taps, most = -(-kernel // stride), max(places)
    sizes = {-(-most // count) for count in range(1, most + 1)}
    even = [Tiling(kernel, stride, size + (size + taps - 1) % 2) for size in sorted(sizes)]
    tilings = [tiling for tiling in even if tiling.positions <= max(LARGEST_TILE, taps + 1)]
    costs = [_estimate_cost(tiling, channels, batch, places) for tiling in tilings]
    direct = DIRECT_COST * math.prod((kernel, kernel, *channels, batch, *places))
    return tilings[costs.index(min(costs))] if always or min(costs) < direct else None


def _estimate_cost(
    tiling: Tiling, channels: tuple[int, int], batch: int, places: tuple[int, int]
) -> float:
    """Estimate the cost of a tiling, in multiplications of large matrices."""
    inputs, outputs = (-(-count // CHANNEL_STEP) * CHANNEL_STEP for count in channels)
    inputs *= tiling.stride**2
    tiles = batch * math.prod(map(tiling.count_tiles, places))
    components = tiling.components
    transformed = (
        tiles * inputs * (tiling.positions**2 + components)
        + inputs * outputs * (tiling.taps**2 + components)
        + tiles * outputs * (tiling.outputs**2 + components)
    )
    return components * tiles * inputs * outputs + TRANSFORM_COST * transformed

"""Convolutions with large kernels that need fewer multiplications, exact up to rounding.

1. With stride S, an image is split into S x S phases x[S i + p, S j + q]. The phases become the
   input channels of a convolution with stride 1. A K x K kernel becomes a kernel with
   k = ceil(K / S) taps along each axis.
2. A block of m x m outputs depends on a tile of n x n positions, n = m + k - 1. Along each axis,
   the m outputs are the first m of the n results of a cyclic correlation. Wrapping around does not
   change these m results.
3. The discrete Fourier transform makes the cyclic correlation diagonal: Y = X V at each frequency.
   X is the transformed tile, V the conjugate of the transformed weights, Y the transformed result.
   Half of the frequencies are enough, because tile and weights are real.
4. A complex product takes three real products. The products k1 = (Xr + Xi) Vr, k2 = Xr (Vi - Vr)
   and k3 = Xi (Vr + Vi) give Yr = k1 - k3 and Yi = k1 + k2.

All steps except the products are linear. The convolution is therefore a bilinear form with three
fixed matrices: y = Ty' [(Tx x) * (Tw w)]. Here ' is the transpose, and * multiplies element by
element. For one tile, one input channel and one output channel, the form has 3 n^2 / 2 components,
each of which is one multiplication. For all tiles and channels, each component is one matrix
product. Let g be the gradient with respect to y. The gradients with respect to x and w use the same
matrices: gx = Tx' [(Ty g) * (Tw w)] and gw = Tw' [(Ty g) * (Tx x)].

n is even. The frequencies 0 and n / 2 are then both real, and the transformed rows form pairs. Each
of the three matrices is applied in two steps. The first step transforms along the rows of a tile.
The second step transforms along the columns, for each pair of transformed rows.

Sources: Winograd, "Arithmetic Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms
for Convolutional Neural Networks" (2016).

Shape letters: B images, H W pixels, C channels, O output channels, T tiles of all images; n as
above; p positions of a tile along an axis (n for the image, k for the weights, m for the outputs);
F = 3 n components of a pair of rows.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_KERNEL = 4
LARGEST_TILE = 24  # positions along an axis; larger tiles need more memory and save no time
# Factors of the real and of the imaginary part of a frequency, for each of the three real products.
# The factors for outputs are doubled, because they also count for the mirrored frequency.
IMAGE = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
WEIGHTS = ((1.0, 0.0), (-1.0, -1.0), (1.0, -1.0))
OUTPUTS = ((2.0, 2.0), (0.0, 2.0), (-2.0, 0.0))


def find_direct_cost() -> float:
    """Return the cost of a multiplication in a direct convolution on this processor.

    The unit is the cost of a multiplication in a product of large matrices. oneDNN uses AVX-512 for
    convolutions if the processor has AVX-512. MKL uses AVX2 for matrix products on all AMD
    processors. On Zen 5 and later AMD processors, AVX2 is half as fast as AVX-512. The function
    recognises these processors by AVX-VNNI, because earlier AMD processors lack AVX-VNNI.
    """
    capabilities = torch.cpu.get_capabilities()
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    is_whole = is_amd and bool(capabilities.get("avx_vnni"))
    return 0.9 if is_whole and torch.backends.cpu.get_cpu_capability() == "AVX512" else 1.8


# DIRECT_COST: cost of a multiplication in a direct convolution. TRANSFORM_COST: cost of the
# transform of one number. CHANNEL_STEP: numbers of channels are rounded up to a multiple of it.
# The unit of cost is the cost of a multiplication in a product of large matrices. All three
# constants are fitted to times of both methods, measured by `capsweep bench convolution`, which was
# removed after commit 40bc5e72.
DIRECT_COST, TRANSFORM_COST, CHANNEL_STEP = find_direct_cost(), 110.0, 32


@dataclass(frozen=True)
class Tiling:
    """A tiling of the outputs of a convolution with a square kernel.

    Attributes:
        kernel: Height and width of the kernel, K.
        stride: Stride along both axes, S.
        outputs: Number of outputs of a tile along an axis, m.
    """

    kernel: int
    stride: int
    outputs: int

    @property
    def taps(self) -> int:
        """The number of taps of the kernel of a phase along an axis, k."""
        return -(-self.kernel // self.stride)

    @property
    def positions(self) -> int:
        """The number of positions of a tile along an axis, n."""
        return self.outputs + self.taps - 1

    @property
    def components(self) -> int:
        """The number of multiplications for each tile and each pair of input and output channel."""
        return 3 * self.positions**2 // 2

    def count_tiles(self, places: int) -> int:
        """Return the number of tiles along an axis with `places` outputs."""
        return -(-places // self.outputs)


class Transform(NamedTuple):
    """One of the three matrices [3 n^2 / 2, p^2] of the bilinear form, stored as two factors.

    Attributes:
        rows_np: Matrix of the first step, along the rows of a tile.
        columns: Matrices of the second step, along the columns: n / 2 matrices [F, 2 p], one for
            each pair of transformed rows.
    """

    rows_np: Tensor
    columns: Tensor

    def to(self, dtype: torch.dtype) -> "Transform":
        """Convert both factors to `dtype`."""
        return Transform(self.rows_np.to(dtype), self.columns.to(dtype))


@lru_cache
def make_transforms(tiling: Tiling, dtype: torch.dtype) -> tuple[Transform, Transform, Transform]:
    """Compute the transforms of image, weights and outputs in float64, then convert to `dtype`."""
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
    # Real and imaginary part of each frequency, for real numbers x and for complex numbers x + i y.
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
    """Choose the tiling with the lowest estimated cost.

    Args:
        kernel: Height and width of the kernel.
        stride: Stride along both axes.
        channels: Number of input channels, and number of output channels.
        batch: Number of images.
        places: Number of rows and number of columns of the outputs.
        always: Whether to choose a tiling even if a direct convolution is expected to be faster.

    Returns:
        The tiling. None if a direct convolution is expected to be faster and `always` is false.
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
    """Estimate the cost of a convolution with a tiling.

    The unit is the cost of a multiplication in a product of large matrices.
    """
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

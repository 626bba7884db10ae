"""Triton kernels that squash routing sums or convolution channels, with their gradients.

With torch operations, a squash takes five kernel launches in the forward pass and ten in the
backward pass. Each launch takes a few microseconds, and reads what the previous launch has just
written. With torch operations, to transpose, cast and squash primary capsules would take eight
launches in each pass. With the kernels of this module, each of these passes takes one launch. The
kernels add partial sums in a fixed order. This order depends only on the number of partial sums.

Importing this module imports triton.

Shape letters: R rows, one for each capsule; D elements of a row; X partial sums; B images, J
parents, I children, P child pose; C channels, H W image. `by_x` is the gradient of the loss with
respect to x.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
# The type checker does not know Triton's loops, nor which of Triton's functions return tuples.

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

# Any: a launch also accepts arguments that are not in the signature of the kernel.
jit: Any = triton.jit
SMALLEST = tl.constexpr(2.0**-126)  # smallest normal float32; the least number to divide by


@jit
def divide(x, y):
    """Divide x by y, correctly rounded.

    Triton's own float32 division can be off by two units in the last place.
    """
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    return x / y


@jit
def get_length(s_RD):
    """Compute the length of each row, [R, 1]; in float32 the square root is correctly rounded."""
    squared_R1 = tl.sum(s_RD * s_RD, axis=1, keep_dims=True)
    if squared_R1.dtype == tl.float32:
        return tl.sqrt_rn(squared_R1)
    return tl.sqrt(squared_R1)


@jit
def get_direction(s_RD):
    """Divide each row by its length; a row of length 0 stays 0."""
    return divide(s_RD, tl.maximum(get_length(s_RD), SMALLEST))


@jit
def squash_rows(s_RD):
    """Squash each row to a length in [0, 1).

    Return the squashed rows and the lengths of the squashed rows. The lengths are [R, 1].
    """
    length_R1 = get_length(s_RD)
    shrunk_R1 = 1 + length_R1 * length_R1
    factor_R1 = divide(length_R1, shrunk_R1)
    return s_RD * factor_R1, length_R1 * factor_R1


@jit
def differentiate_rows(s_RD, by_v_RD):
    """Compute the gradient with respect to rows s from the gradient with respect to squash(s)."""
    length_R1 = get_length(s_RD)
    shrunk_R1 = 1 + length_R1 * length_R1
    slope_R1 = divide(1 - length_R1 * length_R1, shrunk_R1 * shrunk_R1)
    along_R1 = tl.sum(get_direction(s_RD) * by_v_RD, axis=1, keep_dims=True)
    return by_v_RD * divide(length_R1, shrunk_R1) + s_RD * (slope_R1 * along_R1)


@jit
def locate_rows(num_rows, D: tl.constexpr, TILE_R: tl.constexpr, TILE_D: tl.constexpr):
    """Return row indices, column indices, a mask and memory offsets of a program's elements.

    The row indices are [R, 1], the column indices [1, D], the mask and the offsets [R, D]. The mask
    is true for the elements that exist in the tensor.
    """
    row_R1 = (tl.program_id(0) * TILE_R + tl.arange(0, TILE_R))[:, None]
    number_1D = tl.arange(0, TILE_D)[None, :]
    inside_RD = (row_R1 < num_rows) & (number_1D < D)
    return row_R1, number_1D, inside_RD, row_R1.to(tl.int64) * D + number_1D


@jit
def add_parts(
    part_XRD,
    place_RD,
    inside_RD,
    size,
    num_parts,
    TILE_X: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """Add the partial sums of a program's elements; the result is 0 if there are no partial sums.

    In memory, each partial sum is a tensor of `size` elements.
    """
    total_XRD = tl.zeros((TILE_X, TILE_R, TILE_D), part_XRD.dtype.element_ty)
    for first in range(0, num_parts, TILE_X):
        part_X = first + tl.arange(0, TILE_X)
        inside_XRD = (part_X < num_parts)[:, None, None] & inside_RD[None, :, :]
        place_XRD = part_X.to(tl.int64)[:, None, None] * size + place_RD[None, :, :]
        total_XRD += tl.load(part_XRD + place_XRD, mask=inside_XRD, other=0.0)
    return tl.sum(total_XRD, axis=0)


@jit
def squash_sums_kernel(
    part_XBJD,
    bias_JD,
    before_BJD,
    sums_BJD,
    after_BJD,
    length_BJ,
    num_rows,
    num_parts,
    J,
    D: tl.constexpr,
    TILE_X: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_D: tl.constexpr,
    WITH_BEFORE: tl.constexpr,
):
    """Write the sums of routing, their squash, and the length of the squash.

    A sum is the bias plus its partial sums. If WITH_BEFORE, `before` is added to the squash that is
    written to `after`; the length does not include `before`. The launch grid is (tiles of rows).
    """
    row_R1, number_1D, inside_RD, place_RD = locate_rows(num_rows, D, TILE_R, TILE_D)
    bias_RD = tl.load(bias_JD + row_R1 % J * D + number_1D, mask=inside_RD, other=0.0)
    sums_RD = bias_RD + add_parts(
        part_XBJD, place_RD, inside_RD, num_rows * D, num_parts, TILE_X, TILE_R, TILE_D
    )
    v_RD, length_R1 = squash_rows(sums_RD)
    tl.store(sums_BJD + place_RD, sums_RD, mask=inside_RD)
    tl.store(length_BJ + row_R1, length_R1, mask=row_R1 < num_rows)
    if WITH_BEFORE:
        v_RD += tl.load(before_BJD + place_RD, mask=inside_RD, other=0.0)
    tl.store(after_BJD + place_RD, v_RD, mask=inside_RD)


@jit
def differentiate_sums_kernel(
    part_XBJD,
    before_BJD,
    by_length_BJ,
    sums_BJD,
    by_v_BJD,
    by_sums_BJD,
    num_rows,
    num_parts,
    D: tl.constexpr,
    TILE_X: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_D: tl.constexpr,
    WITH_BEFORE: tl.constexpr,
    WITH_LENGTH: tl.constexpr,
):
    """Write the gradients with respect to the sums and to their squash v.

    The gradient with respect to v is `before` (if WITH_BEFORE) plus the sum of the partial sums. If
    WITH_LENGTH, the gradient with respect to the sums also contains the part that comes from the
    length of v. The launch grid is (tiles of rows).
    """
    row_R1, _, inside_RD, place_RD = locate_rows(num_rows, D, TILE_R, TILE_D)
    by_v_RD = add_parts(
        part_XBJD, place_RD, inside_RD, num_rows * D, num_parts, TILE_X, TILE_R, TILE_D
    )
    if WITH_BEFORE:
        by_v_RD += tl.load(before_BJD + place_RD, mask=inside_RD, other=0.0)
    tl.store(by_v_BJD + place_RD, by_v_RD, mask=inside_RD)
    sums_RD = tl.load(sums_BJD + place_RD, mask=inside_RD, other=0.0)
    if WITH_LENGTH:
        by_length_R1 = tl.load(by_length_BJ + row_R1, mask=row_R1 < num_rows, other=0.0)
        by_v_RD += by_length_R1 * get_direction(sums_RD)
    by_sums_RD = differentiate_rows(sums_RD, by_v_RD)
    tl.store(by_sums_BJD + place_RD, by_sums_RD, mask=inside_RD)


@jit
def squash_channels_kernel(
    channel_BCHW,
    pose_BIP,
    by_channel_BCHW,
    num_rows,
    types,
    height,
    width,
    stride_B,
    stride_C,
    stride_H,
    stride_W,
    P: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_P: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Write the squashed poses of primary capsules, or a gradient.

    If BACKWARD, `pose_BIP` has the gradient with respect to the poses, and the kernel writes the
    gradient with respect to the channels. The launch grid is (tiles of rows).
    """
    row_R1, number_1P, inside_RP, row_RP = locate_rows(num_rows, P, TILE_R, TILE_P)
    line_R1 = row_R1 // width
    type_R1 = line_R1 // height
    place_R1 = (type_R1 // types).to(tl.int64) * stride_B + row_R1 % width * stride_W
    place_R1 += line_R1 % height * stride_H
    place_RP = place_R1 + (type_R1 % types * P + number_1P) * stride_C
    s_RP = tl.load(channel_BCHW + place_RP, mask=inside_RP, other=0.0)
    s_RP = s_RP.to(pose_BIP.dtype.element_ty)
    if BACKWARD:
        by_pose_RP = tl.load(pose_BIP + row_RP, mask=inside_RP, other=0.0)
        by_s_RP = differentiate_rows(s_RP, by_pose_RP).to(by_channel_BCHW.dtype.element_ty)
        tl.store(by_channel_BCHW + place_RP, by_s_RP, mask=inside_RP)
    else:
        v_RP, _ = squash_rows(s_RP)
        tl.store(pose_BIP + row_RP, v_RP, mask=inside_RP)


FUSED = {"enable_fp_fusion": True}  # explicit, because the default depends on Triton's version
ROWS = 128  # elements per program; small, because small tensors should give many programs
MOST_PARTS = 16  # largest number of partial sums that a program reads together
CHANNELS = 1024  # elements per program of `squash_channels_kernel`


def squash_sums(
    part_XBJD: Tensor, bias_JD: Tensor, before_BJD: Tensor | None, *results: Tensor
) -> None:
    """Add partial sums and the bias, and squash the result.

    Args:
        part_XBJD: Partial sums.
        bias_JD: Bias of the parents.
        before_BJD: Tensor to which the squash is added. None: 0.
        *results: Three tensors to write into. The first [B, J, D] gets the sums. The second
            [B, J, D] gets `before` plus the squash of the sums. The third [B, J] gets the length of
            the squash.
    """
    parts, images, parents, numbers = part_XBJD.shape
    grid, tiles = _cut_rows(images * parents, numbers, parts)
    read = part_XBJD, bias_JD, part_XBJD if before_BJD is None else before_BJD
    counts, fixed = (images * parents, parts, parents), {"WITH_BEFORE": before_BJD is not None}
    with torch.cuda.device_of(part_XBJD):
        squash_sums_kernel[grid](*read, *results, *counts, **tiles, **fixed, **FUSED)


def differentiate_sums(
    part_XBJD: Tensor | None, before_BJD: Tensor | None, by_length_BJ: Tensor | None, *rest: Tensor
) -> None:
    """Compute the gradients with respect to sums and with respect to their squash.

    The gradient with respect to the squash is `before` plus the partial sums.

    Args:
        part_XBJD: Partial sums of the gradient with respect to the squash. None: 0.
        before_BJD: Gradient with respect to the squash that is added to the partial sums. None: 0.
        by_length_BJ: Gradient with respect to the length of the squash. None: 0.
        *rest: Three tensors [B, J, D]. The first has the sums and is read. The second gets the
            gradient with respect to the squash, and the third the gradient with respect to the
            sums.
    """
    sums_BJD = rest[0]
    parts, numbers = 0 if part_XBJD is None else len(part_XBJD), sums_BJD.shape[2]
    grid, tiles = _cut_rows(sums_BJD[..., 0].numel(), numbers, parts)
    read = (sums_BJD if x is None else x for x in (part_XBJD, before_BJD, by_length_BJ))
    fixed = {"WITH_BEFORE": before_BJD is not None, "WITH_LENGTH": by_length_BJ is not None}
    counts = sums_BJD[..., 0].numel(), parts
    with torch.cuda.device_of(sums_BJD):
        differentiate_sums_kernel[grid](*read, *rest, *counts, **tiles, **fixed, **FUSED)


def _cut_rows(rows: int, numbers: int, parts: int) -> tuple[tuple[int], dict[str, int]]:
    tile, most = power_of_two(numbers), power_of_two(parts)
    tile_rows = max(1, ROWS // tile)
    tiles = {"D": numbers, "TILE_D": tile, "TILE_R": tile_rows, "TILE_X": min(MOST_PARTS, most)}
    return (-(-rows // tile_rows),), tiles


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`.

    Triton accepts only powers of two as tile sizes.
    """
    return 1 << max(0, size - 1).bit_length()


class SquashedChannels(torch.autograd.Function):
    """An autograd function that squashes channels [B, C, H, W] to poses [B, I, P].

    The channels may have any memory layout.
    """

    @staticmethod
    def forward(ctx: Any, channel_BCHW: Tensor, pose: int, dtype: torch.dtype) -> Tensor:
        """Squash each group of `pose` channels, and return the poses [B, I, P] in `dtype`."""
        images, channels, *places = channel_BCHW.shape
        shape = images, channels // pose * math.prod(places), pose
        pose_BIP = channel_BCHW.new_empty(shape, dtype=dtype)
        _launch(channel_BCHW, pose_BIP, channel_BCHW, BACKWARD=False)
        ctx.save_for_backward(channel_BCHW)
        return pose_BIP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_pose_BIP: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradient with respect to the channels, in their memory layout."""
        (channel_BCHW,) = ctx.saved_tensors
        by_channel_BCHW = channel_BCHW.new_empty_strided(channel_BCHW.shape, channel_BCHW.stride())
        _launch(channel_BCHW, by_pose_BIP.contiguous(), by_channel_BCHW, BACKWARD=True)
        return by_channel_BCHW, None, None


def _launch(
    channel_BCHW: Tensor, pose_BIP: Tensor, by_channel_BCHW: Tensor, **switches: bool
) -> None:
    """Launch `squash_channels_kernel`; `pose_BIP` has the poses or the gradient of the poses."""
    _, channels, height, width = channel_BCHW.shape
    rows, pose = pose_BIP[..., 0].numel(), pose_BIP.shape[2]
    tile = power_of_two(pose)
    tile_rows = max(1, CHANNELS // tile)
    tensors = channel_BCHW, pose_BIP, by_channel_BCHW
    counts = rows, channels // pose, height, width, *channel_BCHW.stride()
    with torch.cuda.device_of(channel_BCHW):
        squash_channels_kernel[-(-rows // tile_rows),](
            *tensors, *counts, P=pose, TILE_R=tile_rows, TILE_P=tile, **switches, **FUSED
        )

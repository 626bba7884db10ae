"""Primary capsules from the channels of a convolution, by a Triton kernel each way; imports triton.

By torch's operations they are transposed, cast and squashed in eight launches, and as many back.

Shape letters: R rows, each a capsule; B batch, I children, P child pose, C H W channels.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
# Only Triton's compiler knows which of its functions give tuples.

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.model.squash_kernels import FUSED, differentiate_rows, power_of_two, squash_rows


@triton.jit
def squash_channels_kernel(
    channel_BCHW,
    pose_BIP,
    by_pose_BIP,
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
    """Write the poses of primary capsules, P channels each, or the gradient by the channels.

    The grid is (rows).
    """
    row_R1 = (tl.program_id(0) * TILE_R + tl.arange(0, TILE_R))[:, None]
    number_1P = tl.arange(0, TILE_P)[None, :]
    inside_RP = (row_R1 < num_rows) & (number_1P < P)
    line_R1 = row_R1 // width
    type_R1 = line_R1 // height
    place_R1 = (type_R1 // types).to(tl.int64) * stride_B + row_R1 % width * stride_W
    place_R1 += line_R1 % height * stride_H
    place_RP = place_R1 + (type_R1 % types * P + number_1P) * stride_C
    row_RP = row_R1.to(tl.int64) * P + number_1P
    s_RP = tl.load(channel_BCHW + place_RP, mask=inside_RP, other=0.0)
    s_RP = s_RP.to(pose_BIP.dtype.element_ty)
    if BACKWARD:
        by_pose_RP = tl.load(by_pose_BIP + row_RP, mask=inside_RP, other=0.0)
        by_s_RP = differentiate_rows(s_RP, by_pose_RP).to(by_channel_BCHW.dtype.element_ty)
        tl.store(by_channel_BCHW + place_RP, by_s_RP, mask=inside_RP)
    else:
        v_RP, _ = squash_rows(s_RP)
        tl.store(pose_BIP + row_RP, v_RP, mask=inside_RP)


# Triton adds arguments of its own to those of a kernel.
SQUASH_CHANNELS: Any = squash_channels_kernel
CHANNELS = 1024  # numbers of a program's capsules


class SquashedChannels(torch.autograd.Function):
    """Squashes channels [B, C, H, W], in any layout, to poses [B, I, P] of a type of number."""

    @staticmethod
    def forward(ctx: Any, channel_BCHW: Tensor, pose: int, dtype: torch.dtype) -> Tensor:
        images, channels, *places = channel_BCHW.shape
        shape = images, channels // pose * math.prod(places), pose
        pose_BIP = channel_BCHW.new_empty(shape, dtype=dtype)
        _launch(channel_BCHW, pose_BIP, pose_BIP, channel_BCHW, BACKWARD=False)
        ctx.save_for_backward(channel_BCHW)
        return pose_BIP

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, grad_outputs[0].contiguous()), None, None


@once_differentiable
def _differentiate(ctx: Any, by_pose_BIP: Tensor) -> Tensor:
    """Return the gradient by the channels, laid out as they are."""
    (channel_BCHW,) = ctx.saved_tensors
    by_channel_BCHW = channel_BCHW.new_empty_strided(channel_BCHW.shape, channel_BCHW.stride())
    _launch(channel_BCHW, by_pose_BIP, by_pose_BIP, by_channel_BCHW, BACKWARD=True)
    return by_channel_BCHW


def _launch(
    channel_BCHW: Tensor,
    pose_BIP: Tensor,
    by_pose_BIP: Tensor,
    by_channel_BCHW: Tensor,
    **way: bool,
) -> None:
    _, channels, height, width = channel_BCHW.shape
    rows, pose = pose_BIP[..., 0].numel(), pose_BIP.shape[2]
    tile = power_of_two(pose)
    many = max(1, CHANNELS // tile)
    tensors = channel_BCHW, pose_BIP, by_pose_BIP, by_channel_BCHW
    counts = rows, channels // pose, height, width, *channel_BCHW.stride()
    with torch.cuda.device_of(channel_BCHW):
        SQUASH_CHANNELS[-(-rows // many),](
            *tensors, *counts, P=pose, TILE_R=many, TILE_P=tile, **way, **FUSED
        )

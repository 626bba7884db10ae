"""Dynamic routing of linear votes by Triton kernels: the forward pass and its gradient.

The mathematics is in `dynamic` and `dynamic_fast`. A training step takes only a few milliseconds,
so the few microseconds of each kernel launch matter. Three measures save launches:

- Each kernel also does the small operations that come between the previous kernel and this kernel.
- All iterations write into common tensors with an axis T. One launch in the backward pass reads
  these tensors.
- The weights are transposed only once per training step, in the forward pass.

Tile sizes and the number of partial sums depend only on the shapes and the data type.
`triton.autotune` is not used, because it would choose tile sizes at run time. Another choice would
change the order of additions, and with it the last bits of the results.

In the first iteration all images share the couplings. The sums of the first iteration are therefore
computed by one matrix product of torch, in the precision that is set for torch.

If TRITON_INTERPRET=1 is set before the import, Triton's interpreter runs the kernels on a CPU. The
results are correct, but the interpreter is slow. Importing this module imports triton.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations (for
couplings and their gradients, only those after the first); X partial sums. `by_x` is the gradient
of the loss with respect to x.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.model.routing import softmax_over_parents
from capsweep.model.routing.dynamic_fast import Options
from capsweep.model.routing.dynamic_kernels import (
    differentiate_kernel,
    iterate_kernel,
    transpose_weights_kernel,
)
from capsweep.model.squash_kernels import FUSED, differentiate_sums, power_of_two, squash_sums

cdiv: Any = triton.cdiv  # Any, because the declared type of cdiv includes constants of kernels
# These constants were measured on an H200 with the network of the paper, for which a program has
# one warp. The numbers of 16 images do not fit into the registers of the warp. Nevertheless 16
# images at a time are faster than 4, because the weights are read a quarter as often.
PROGRAMS = 1024  # approximate number of programs to launch
REGISTERS, COLUMN_REGISTERS = 255, 168  # limits per thread: iterate_kernel, differentiate_kernel
TILE_BYTES = 16384  # bytes per warp, for each of votes, parents and sums
WEIGHT_BYTES = 8192  # bytes per warp of `differentiate_kernel`, for each of weights and gradient
MOST_WEIGHT_BYTES = 32768  # most bytes per program of `differentiate_kernel`
MOST_WARPS = 16
# Largest factor by which the loop over the numbers of a pose is unrolled. A loop that is not
# unrolled moves tiles between layouts.
LONGEST_UNROLLED = 16
SHORTEST_PART = 16  # fewest images in a partial sum


class KernelRouting(torch.autograd.Function):
    """An autograd function that returns the last poses, their lengths and the last couplings.

    Poses and lengths are differentiable with respect to child poses, weights, prior and bias; the
    couplings are not differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any,
        pose_BIP: Tensor,
        weight_IJDP: Tensor,
        prior_IJ: Tensor,
        bias_JD: Tensor,
        options: Options,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Route linear votes; `dynamic_fast.route_linear` explains the arguments."""
        num_iters, none_of_the_above, is_full = options
        prior_IJ, bias_JD = prior_IJ.contiguous(), bias_JD.contiguous()
        coupling_IJ = softmax_over_parents(prior_IJ, none_of_the_above, dim=1).contiguous()
        kernels = Kernels(pose_BIP, weight_IJDP.shape)
        part_XBJD = kernels.sum_first(weight_IJDP, coupling_IJ)[None]
        sums_TBJD = bias_JD.new_empty(num_iters, *part_XBJD.shape[1:])
        after_TBJD = torch.empty_like(sums_TBJD)  # at t: v_0 + ... + v_t; at the last t: v_t
        length_BJ = bias_JD.new_empty(sums_TBJD.shape[1:3])
        coupling_TBIJ = bias_JD.new_empty(num_iters - 1, len(pose_BIP), *prior_IJ.shape)
        for t in range(num_iters):
            if t > 0:
                read = prior_IJ, coupling_TBIJ[t - 1], after_TBJD[t - 1], coupling_TBIJ[t - 1]
                part_XBJD = kernels.iterate(*read, WITH_NONE=none_of_the_above)
            before_BJD = after_TBJD[t - 1] if 0 < t < num_iters - 1 else None
            squash_sums(part_XBJD, bias_JD, before_BJD, sums_TBJD[t], after_TBJD[t], length_BJ)
        ctx.save_for_backward(
            kernels.pose_BIP, kernels.weight_IPJD, coupling_IJ, coupling_TBIJ, sums_TBJD, after_TBJD
        )
        ctx.is_full, ctx.shape = is_full, weight_IJDP.shape
        ctx.set_materialize_grads(False)
        last_BIJ = coupling_TBIJ[-1] if num_iters > 1 else kernels.repeat(coupling_IJ)
        ctx.mark_non_differentiable(last_BIJ)
        return after_TBJD[-1], length_BJ, last_BIJ

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, by_v_BJD: Tensor | None, by_length_BJ: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients with respect to poses, weights, prior and bias.

        The loop runs over the iterations, from the last to the first.
        """
        if by_v_BJD is None and by_length_BJ is None:
            return (None,) * 5
        pose_BIP, weight_IPJD, coupling_IJ, coupling_TBIJ, sums_TBJD, after_TBJD = ctx.saved_tensors
        kernels, last = Kernels(pose_BIP, ctx.shape, weight_IPJD), len(coupling_TBIJ)
        first, with_prior = 0 if ctx.is_full else last, ctx.needs_input_grad[2]
        by_sums_TBJD, by_logit_TBIJ = torch.empty_like(sums_TBJD), torch.empty_like(coupling_TBIJ)
        by_prior_IJ = torch.zeros_like(coupling_IJ) if with_prior else None
        before_BJD = None if by_v_BJD is None else by_v_BJD.contiguous()
        length_BJ = None if by_length_BJ is None else by_length_BJ.contiguous()
        part_XBJD, by_pose_sum_BJD = None, torch.empty_like(sums_TBJD[0])
        for t in range(last, first - 1, -1):
            squashed = sums_TBJD[t], by_pose_sum_BJD, by_sums_TBJD[t]
            differentiate_sums(part_XBJD, before_BJD, length_BJ, *squashed)
            # Each v except the last contributes to all later logits. No logits follow the last v.
            before_BJD, length_BJ = None if t == last else by_pose_sum_BJD, None
            if with_prior or (ctx.is_full and t > 0):
                coupling_BIJ = coupling_TBIJ[t - 1] if t > 0 else kernels.repeat(coupling_IJ)
                by_logit_BIJ = by_logit_TBIJ[t - 1] if t > 0 else torch.empty_like(coupling_BIJ)
                read = coupling_IJ, coupling_BIJ, by_sums_TBJD[t], by_logit_BIJ
                part_XBJD = kernels.iterate(*read, BACKWARD=True)
                if by_prior_IJ is not None:
                    by_prior_IJ += by_logit_BIJ.sum(dim=0)
        chosen = slice(None) if ctx.is_full else slice(-1, None)
        terms = (coupling_TBIJ, by_logit_TBIJ, by_sums_TBJD, after_TBJD)
        by_inputs = kernels.differentiate_inputs(
            coupling_IJ, *(x[chosen] for x in terms), WITH_FIRST=first == 0, WITH_LOGITS=ctx.is_full
        )
        by_bias_JD = by_sums_TBJD[first:].sum(dim=(0, 1))
        return *by_inputs, by_prior_IJ, by_bias_JD, None


class Kernels:
    """A launcher of the routing kernels, for votes of one shape.

    The launcher passes only contiguous tensors to the kernels.

    Args:
        pose_BIP: Poses of the children.
        shape_IJDP: Shape of the vote weights.
        weight_IPJD: Weights in the axis order of the kernels, from an earlier `sum_first`. None:
            `sum_first` will write them.
    """

    def __init__(
        self, pose_BIP: Tensor, shape_IJDP: torch.Size, weight_IPJD: Tensor | None = None
    ) -> None:
        self.pose_BIP, self.num_images = pose_BIP.contiguous(), len(pose_BIP)
        self.num_children, self.parents, self.numbers, self.pose = shape_IJDP
        shape_IPJD = self.num_children, self.pose, self.parents, self.numbers
        self.weight_IPJD = pose_BIP.new_empty(shape_IPJD) if weight_IPJD is None else weight_IPJD
        tiles = power_of_two(self.parents), power_of_two(self.numbers)
        self.tile, self.size = tiles[0] * tiles[1], pose_BIP.element_size()
        columns = max(1, MOST_WEIGHT_BYTES // self.size // self.tile)
        self.columns = min(columns, power_of_two(self.pose))
        self.column_tiles = cdiv(self.pose, self.columns)
        self.fixed = {"P": self.pose, "J": self.parents, "D": self.numbers}
        self.fixed |= {"TILE_J": tiles[0], "TILE_D": tiles[1], **FUSED}

    def repeat(self, coupling_IJ: Tensor) -> Tensor:
        """Repeat couplings [I, J] for each image; the result is [B, I, J]."""
        return coupling_IJ.expand(self.num_images, -1, -1).contiguous()

    def sum_first(self, weight_IJDP: Tensor, coupling_IJ: Tensor) -> Tensor:
        """Transpose the weights for all later kernels, and compute the sums of the first iteration.

        Returns:
            The sums [B, J, D] without the bias, computed by one matrix product.
        """
        shared_IPJD = torch.empty_like(self.weight_IPJD)
        tensors = weight_IJDP.contiguous(), coupling_IJ, self.weight_IPJD, shared_IPJD
        grid = self.num_children, self.column_tiles
        with torch.cuda.device_of(self.pose_BIP):
            transpose_weights_kernel[grid](*tensors, TILE_P=self.columns, **self.fixed)
        sum_BE = self.pose_BIP.flatten(1) @ shared_IPJD.flatten(2).flatten(0, 1)
        return sum_BE.unflatten(1, shared_IPJD.shape[2:])

    def iterate(
        self,
        prior_IJ: Tensor,
        coupling_BIJ: Tensor,
        parent_BJD: Tensor,
        coefficient_BIJ: Tensor,
        WITH_NONE: bool = False,
        BACKWARD: bool = False,
    ) -> Tensor:
        """Compute the sums of the votes times their coefficients, and write the coefficients.

        Args:
            prior_IJ: Logits before the first iteration. Only the forward pass reads them.
            coupling_BIJ: Couplings of the iteration. Only the backward pass reads them.
            parent_BJD: Vectors whose products with the votes give the coefficients.
            coefficient_BIJ: Tensor into which the coefficients are written.
            WITH_NONE: Whether a share of each child may go to no parent.
            BACKWARD: True in the backward pass: the coefficients are the gradient with respect to
                the logits. False in the forward pass: the coefficients are the couplings.

        Returns:
            Partial sums [X, B, J, D]. Their sum over X is sum_i coefficient_ij u_hat_ij.
        """
        per_warp = TILE_BYTES // self.size
        images = min(max(1, per_warp // self.tile), power_of_two(self.num_images))
        image_tiles = cdiv(self.num_images, images)
        parts = min(max(1, PROGRAMS // max(1, image_tiles)), self.num_children)
        children = cdiv(self.num_children, parts)
        parts = cdiv(self.num_children, children)
        part_XBJD = parent_BJD.new_empty(parts, *parent_BJD.shape)
        fixed = {"WITH_NONE": WITH_NONE, "BACKWARD": BACKWARD, "TILE_B": images}
        fixed["UNROLLED"] = min(LONGEST_UNROLLED, self.pose)
        tensors = prior_IJ, coupling_BIJ, parent_BJD, coefficient_BIJ, part_XBJD
        counts = self.num_images, self.num_children, children
        fixed |= _choose_warps(self.tile, per_warp, REGISTERS)
        self._launch(iterate_kernel, (image_tiles, parts), *tensors, *counts, **fixed)
        return part_XBJD

    def differentiate_inputs(self, *terms: Tensor, **switches: bool) -> tuple[Tensor, Tensor]:
        """Compute the gradients with respect to the poses [B, I, P] and the weights [I, J, D, P].

        The gradient with respect to the votes stays in registers.
        """
        parts = max(1, PROGRAMS // (self.num_children * self.column_tiles))
        parts = min(parts, max(1, cdiv(self.num_images, SHORTEST_PART)))
        by_pose_BIP = torch.empty_like(self.pose_BIP)
        shape_IJDP = self.num_children, self.parents, self.numbers, self.pose
        by_weight_XIJDP = self.weight_IPJD.new_empty(parts, *shape_IJDP)
        grid = self.num_children, parts, self.column_tiles
        counts = self.num_images, self.num_children, cdiv(self.num_images, parts)
        fixed = {"T": len(terms[1]), "TILE_P": self.columns, **switches}
        per_warp = WEIGHT_BYTES // self.size
        fixed |= _choose_warps(self.columns * self.tile, per_warp, COLUMN_REGISTERS)
        tensors = *terms, by_pose_BIP, by_weight_XIJDP
        self._launch(differentiate_kernel, grid, *tensors, *counts, **fixed)
        return by_pose_BIP, by_weight_XIJDP[0] if parts == 1 else by_weight_XIJDP.sum(dim=0)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **fixed: int) -> None:
        with torch.cuda.device_of(self.pose_BIP):
            kernel[grid](self.pose_BIP, self.weight_IPJD, *arguments, **self.fixed, **fixed)


def _choose_warps(tile: int, per_warp: int, registers: int) -> dict[str, int]:
    """Choose the number of warps; if it is 1, also limit the registers per thread."""
    warps = min(MOST_WARPS, max(1, tile // per_warp))
    return {"num_warps": warps} | ({"maxnreg": registers} if warps == 1 else {})

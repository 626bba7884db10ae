"""Dynamic routing of linear votes by two Triton kernels, for NVIDIA GPUs; imports triton.

Neither kernel forms the votes in memory: a program computes those of one child from its weights
and poses in registers, where they are used twice (agreement, weighted sum) and dropped. Written out
they would be read from memory once an iteration; at 128 images of the paper's network they are 94
MB, twice what the second cache of an H200 holds, and the weights they come from are 6 MB, which
stay there. The price is P multiplications a number, of which that chip has enough.

Nothing is added atomically: a program that sums over some children, or some images, writes a part
of its own, and torch adds the parts. Products are products of single numbers, never of tensor
cores, so there is no TF32. Sizes need not be powers of two: tiles are, and what is outside is 0.

Sizes of tiles and the number of parts are a function of the shapes alone. They are not tuned when
the program runs, as by `triton.autotune`: parts decide the order of sums, so a faster run would
have other bits. The sums of the first iteration need no kernel: its couplings are those of every
image, so they are one product of matrices, with the precision that torch is set to.

Triton's interpreter, TRITON_INTERPRET=1 before the import, routes on a CPU: exact, and slow.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T terms of the votes'
gradient; X parts of a sum. In upper case, beside those sizes, tiles and switches fixed at
compilation.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
# Only Triton's compiler can iterate over its loops, and knows which of its functions give tuples.

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsweep.model.routing.dynamic_fast import LinearVotes, RankOneTerm


@triton.jit
def iterate_kernel(
    pose_BIP,
    weight_IPJD,
    prior_IJ,
    coupling_BIJ,
    parent_BJD,
    coefficient_BIJ,
    part_XBJD,
    num_images,
    num_children,
    children_per_part,
    P: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    TILE_B: tl.constexpr,
    TILE_J: tl.constexpr,
    TILE_D: tl.constexpr,
    UNROLLED: tl.constexpr,
    BACKWARD: tl.constexpr,
    WITH_NONE: tl.constexpr,
):
    """sum_i coefficient_ij u_hat_ij over some children, of TILE_B images; grid (images, parts).

    With a_ij = u_hat_ij . parent_j the coefficients are, forwards, the couplings softmax_j (prior +
    a), and, backwards, the gradient by the logits c_ij (a_ij - sum_k c_ik a_ik), with the couplings
    c given. They are written as well.
    """
    image_B = tl.program_id(0).to(tl.int64) * TILE_B + tl.arange(0, TILE_B)
    parent_J = tl.arange(0, TILE_J)
    number_D = tl.arange(0, TILE_D)
    is_image_B = image_B < num_images
    is_parent_J = parent_J < J
    inside_BJ = is_image_B[:, None] & is_parent_J[None, :]
    inside_JD = is_parent_J[:, None] & (number_D < D)[None, :]
    inside_BJD = is_image_B[:, None, None] & inside_JD[None, :, :]
    place_JD = parent_J[:, None] * D + number_D[None, :]
    place_BJD = image_B[:, None, None] * (J * D) + place_JD[None, :, :]

    parent = tl.load(parent_BJD + place_BJD, mask=inside_BJD, other=0.0)
    total = tl.zeros_like(parent)
    part = tl.program_id(1).to(tl.int64)
    first = part * children_per_part
    for child in range(first, tl.minimum(first + children_per_part, num_children)):
        row_B = image_B * num_children + child
        votes = tl.zeros_like(parent)
        for p in tl.range(0, P, loop_unroll_factor=UNROLLED):
            pose_B = tl.load(pose_BIP + row_B * P + p, mask=is_image_B, other=0.0)
            row_JD = weight_IPJD + (child * P + p) * (J * D) + place_JD
            weight_JD = tl.load(row_JD, mask=inside_JD, other=0.0)
            votes += pose_B[:, None, None] * weight_JD[None, :, :]
        agreement_BJ = tl.sum(votes * parent, axis=2)
        place_BJ = row_B[:, None] * J + parent_J[None, :]
        if BACKWARD:
            coupling = tl.load(coupling_BIJ + place_BJ, mask=inside_BJ, other=0.0)
            weighted = coupling * agreement_BJ
            coefficient = weighted - coupling * tl.sum(weighted, axis=1, keep_dims=True)
        else:
            prior_J = tl.load(prior_IJ + child * J + parent_J, mask=is_parent_J, other=0.0)
            logit = agreement_BJ + prior_J[None, :]
            logit = tl.where(is_parent_J[None, :], logit, float("-inf"))
            largest_B1 = tl.max(logit, axis=1, keep_dims=True)
            if WITH_NONE:
                largest_B1 = tl.maximum(largest_B1, 0.0)
            odds = tl.exp(logit - largest_B1)
            all_B1 = tl.sum(odds, axis=1, keep_dims=True)
            if WITH_NONE:
                all_B1 += tl.exp(-largest_B1)
            coefficient = odds / all_B1
        tl.store(coefficient_BIJ + place_BJ, coefficient, mask=inside_BJ)
        total += coefficient[:, :, None] * votes
    tl.store(part_XBJD + part * num_images * (J * D) + place_BJD, total, mask=inside_BJD)


@triton.jit
def differentiate_kernel(
    pose_BIP,
    weight_IPJD,
    weight_TBIJ,
    vector_TBJD,
    by_pose_BIP,
    by_weight_XIPJD,
    num_images,
    num_children,
    images_per_part,
    T: tl.constexpr,
    P: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_J: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """Gradients by TILE_P columns of a child's weights, and by as many numbers of its pose in some
    images, where the votes' gradient is sum_t weight_ij vector_j; grid (children, parts, columns).
    """
    child = tl.program_id(0).to(tl.int64)
    pose_P = tl.program_id(2) * TILE_P + tl.arange(0, TILE_P)
    parent_J = tl.arange(0, TILE_J)
    number_D = tl.arange(0, TILE_D)
    is_pose_P = pose_P < P
    is_parent_J = parent_J < J
    inside_JD = is_parent_J[:, None] & (number_D < D)[None, :]
    inside_PJD = is_pose_P[:, None, None] & inside_JD[None, :, :]
    place_JD = parent_J[:, None] * D + number_D[None, :]
    place_PJD = pose_P[:, None, None] * (J * D) + place_JD[None, :, :]

    weight = tl.load(weight_IPJD + child * (P * J * D) + place_PJD, mask=inside_PJD, other=0.0)
    by_weight = tl.zeros_like(weight)
    part = tl.program_id(1).to(tl.int64)
    first = part * images_per_part
    for image in range(first, tl.minimum(first + images_per_part, num_images)):
        by_votes_JD = tl.zeros((TILE_J, TILE_D), weight.dtype)
        for t in tl.static_range(T):
            term = image + t * num_images
            place_J = (term * num_children + child) * J + parent_J
            place = term * (J * D) + place_JD
            weight_J = tl.load(weight_TBIJ + place_J, mask=is_parent_J, other=0.0)
            vector_JD = tl.load(vector_TBJD + place, mask=inside_JD, other=0.0)
            by_votes_JD += weight_J[:, None] * vector_JD
        place_P = (image * num_children + child) * P + pose_P
        pose = tl.load(pose_BIP + place_P, mask=is_pose_P, other=0.0)
        by_weight += pose[:, None, None] * by_votes_JD[None, :, :]
        by_pose_P = tl.sum(tl.sum(weight * by_votes_JD[None, :, :], axis=2), axis=1)
        tl.store(by_pose_BIP + place_P, by_pose_P, mask=is_pose_P)
    row_PJD = (part * num_children + child) * (P * J * D) + place_PJD
    tl.store(by_weight_XIPJD + row_PJD, by_weight, mask=inside_PJD)


# Triton adds arguments of its own to those of a kernel.
ITERATE: Any = iterate_kernel
DIFFERENTIATE: Any = differentiate_kernel
INTERPRETED = not isinstance(iterate_kernel, triton.JITFunction)
PROGRAMS = 2048  # fill a large GPU; each is one warp where parents are few
TILE_BYTES = 4096  # a warp's, of votes, parents and sums each: 32 registers a thread
WEIGHT_BYTES = 8192  # a warp's, of weights and their gradient each in `differentiate_kernel`
MOST_WEIGHT_BYTES = 32768  # a program's
MOST_WARPS = 16
LONGEST_UNROLLED = 16  # numbers of a child's pose: a loop over them moves tiles between layouts
SHORTEST_PART = 16  # images
FUSED = {"enable_fp_fusion": True}  # explicit, since the default depends on the version


class KernelVotes(LinearVotes):
    """By kernels, [B, I, J] and [B, J, D]: all tensors contiguous."""

    parent_axis, pose_axis = -1, -1

    def __init__(self, pose_BIP: Tensor, weight_IJDP: Tensor) -> None:
        self.pose_BIP = pose_BIP.contiguous()
        self.weight_IPJD = weight_IJDP.permute(0, 3, 1, 2).contiguous()
        self.num_images, self.num_children = pose_BIP.shape[:2]
        self.pose, parents, numbers = self.weight_IPJD.shape[1:]
        tiles = _power_of_two(parents), _power_of_two(numbers)
        self.sizes = {"P": self.pose, "J": parents, "D": numbers}
        self.sizes |= {"TILE_J": tiles[0], "TILE_D": tiles[1]}
        self.tile = tiles[0] * tiles[1]

    @staticmethod
    def lay_out(prior_IJ: Tensor, bias_JD: Tensor) -> tuple[Tensor, Tensor]:
        """As they are."""
        return prior_IJ.contiguous(), bias_JD

    @staticmethod
    def put_images_first(v: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
        """They are."""
        return v, coupling

    def sum_first(self, coupling: Tensor) -> Tensor:
        """[B, J, D]: one product of matrices."""
        weight_IPJD = self.weight_IPJD * coupling[:, None, :, None]
        sum_BE = self.pose_BIP.flatten(1) @ weight_IPJD.flatten(2).flatten(0, 1)
        return sum_BE.unflatten(1, weight_IPJD.shape[2:])

    def sum_votes(
        self, pose_sum: Tensor, prior: Tensor, none_of_the_above: bool
    ) -> tuple[Tensor, Tensor]:
        """[B, I, J] and [B, J, D]."""
        coupling_BIJ = prior.new_empty(self.num_images, *prior.shape)
        tensors = prior, coupling_BIJ, pose_sum, coupling_BIJ
        sums_BJD = self._launch_iterate(tensors, BACKWARD=False, WITH_NONE=none_of_the_above)
        return coupling_BIJ, sums_BJD

    def differentiate_couplings(
        self, coupling: Tensor, by_sums: Tensor, by_pose_sum: Tensor
    ) -> Tensor:
        """By one kernel more: [B, I, J]."""
        coupling_BIJ = coupling.expand(self.num_images, -1, -1).contiguous()
        by_logit_BIJ = torch.empty_like(coupling_BIJ)
        tensors = coupling_BIJ, coupling_BIJ, by_sums, by_logit_BIJ  # there is no prior to be read
        by_pose_sum += self._launch_iterate(tensors, BACKWARD=True, WITH_NONE=False)
        return by_logit_BIJ

    def _launch_iterate(self, tensors: tuple[Tensor, ...], **switches: bool) -> Tensor:
        per_warp = TILE_BYTES // self.weight_IPJD.element_size()
        images = min(max(1, per_warp // self.tile), _power_of_two(self.num_images))
        image_tiles = _count_parts(self.num_images, images)
        parts = min(max(1, PROGRAMS // max(1, image_tiles)), self.num_children)
        children = _count_parts(self.num_children, parts)
        parts = _count_parts(self.num_children, children)
        by_part = self.pose_BIP.new_empty(parts, self.num_images, *self.weight_IPJD.shape[2:])
        self._launch(
            ITERATE,
            (image_tiles, parts),
            (*tensors, by_part),
            children,
            **switches,
            TILE_B=images,
            UNROLLED=min(LONGEST_UNROLLED, self.pose),
            num_warps=_count_warps(self.tile, per_warp),
        )
        return by_part.sum(dim=0)

    def differentiate_inputs(self, terms: Sequence[RankOneTerm]) -> tuple[Tensor, Tensor]:
        """The votes' gradient is formed in registers."""
        weight_TBIJ = torch.stack([x.weight.expand(self.num_images, -1, -1) for x in terms])
        vector_TBJD = torch.stack([term.vector for term in terms])
        size = self.weight_IPJD.element_size()
        columns = max(1, MOST_WEIGHT_BYTES // size // self.tile)
        columns = min(columns, _power_of_two(self.pose))
        column_tiles = _count_parts(self.pose, columns)
        parts = max(1, PROGRAMS // (self.num_children * column_tiles))
        parts = min(parts, max(1, _count_parts(self.num_images, SHORTEST_PART)))
        by_pose_BIP = torch.empty_like(self.pose_BIP)
        by_part = self.weight_IPJD.new_empty(parts, *self.weight_IPJD.shape)
        self._launch(
            DIFFERENTIATE,
            (self.num_children, parts, column_tiles),
            (weight_TBIJ, vector_TBJD, by_pose_BIP, by_part),
            _count_parts(self.num_images, parts),
            T=len(terms),
            TILE_P=columns,
            num_warps=_count_warps(columns * self.tile, WEIGHT_BYTES // size),
        )
        return by_pose_BIP, by_part.sum(dim=0).permute(0, 2, 3, 1)

    def _launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        tensors: tuple[Tensor, ...],
        in_a_part: int,
        **fixed: int,
    ) -> None:
        counts = self.num_images, self.num_children, in_a_part
        fixed |= self.sizes | FUSED
        with torch.cuda.device_of(self.pose_BIP):
            kernel[grid](self.pose_BIP, self.weight_IPJD, *tensors, *counts, **fixed)


def _count_parts(total: int, largest: int) -> int:
    """Into how many shares of at most `largest` the total falls."""
    return -(-total // largest)


def _power_of_two(size: int) -> int:
    """The smallest that holds `size`, which tiles must be."""
    return 1 << (size - 1).bit_length()


def _count_warps(tile: int, per_warp: int) -> int:
    return min(MOST_WARPS, max(1, tile // per_warp))

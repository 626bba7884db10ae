"""How the kernels of `dynamic_programs` are launched, and the first iteration, which needs none.

The first couplings are those of every image, so that iteration is one product of matrices, and its
gradient two: by torch, with the precision that torch is set to.

Sizes of tiles and the number of parts are a function of the shapes alone. They are not tuned when
the program runs, as by `triton.autotune`: parts decide the order of sums, so a faster run would
have other bits. Importing this file needs triton.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations after the
first; X = I P, E = J D, Y parts of a sum.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from capsweep.errors import ConfigError
from capsweep.model.routing.kernels import dynamic_programs

# Triton adds arguments of its own to those of a kernel.
ITERATE: Any = dynamic_programs.iterate
DIFFERENTIATE: Any = dynamic_programs.differentiate
INTERPRETED = not isinstance(dynamic_programs.iterate, triton.JITFunction)
PROGRAMS = 2048  # fill a large GPU; each is one warp where parents are few
TILE_BYTES = 4096  # a warp's, of votes, parents and sums each in `iterate`: 32 registers a thread
WEIGHT_BYTES = 8192  # a warp's, of weights and their gradient each in `differentiate`
MOST_WEIGHT_BYTES = 32768  # a program's
MOST_WARPS = 16
LONGEST_UNROLLED = 16  # numbers of a child's pose: a loop over them moves tiles between layouts
LARGEST_TILE = 2**20  # numbers: Triton's own limit
SHORTEST_PART = 16  # images
FUSED = {"enable_fp_fusion": True}  # said, since the default depends on the version


class Gradients(NamedTuple):
    """By poses and weights."""

    pose_BIP: Tensor
    weight_IPJD: Tensor


class Linear:
    """Poses pose_BIP and weights weight_IPJD of all children, and what is done with their votes.

    Both are contiguous. Raises ConfigError for parents that fit no tile.
    """

    def __init__(self, pose_BIP: Tensor, weight_IPJD: Tensor) -> None:
        self.pose_BIP, self.weight_IPJD = pose_BIP, weight_IPJD
        self.num_images, self.num_children = pose_BIP.shape[:2]
        self.pose, parents, numbers = weight_IPJD.shape[1:]
        tiles = _power_of_two(parents), _power_of_two(numbers)
        self.sizes = {"P": self.pose, "J": parents, "D": numbers}
        self.sizes |= {"TILE_J": tiles[0], "TILE_D": tiles[1]}
        self.tile = tiles[0] * tiles[1]
        if self.tile > LARGEST_TILE:
            raise ConfigError(
                f"routing.impl=triton holds the poses of all parents in a tile of {LARGEST_TILE} "
                f"numbers, which {parents} parents of {numbers} exceed; set routing.impl=fast"
            )

    def sums(
        self, seen_BJD: Tensor, prior_IJ: Tensor | None, with_none: bool, coupling_BIJ: Tensor
    ) -> Tensor:
        """sum_i c_ij u_hat_ij [B, J, D] of the couplings that follow from `seen`, the sum of the v
        before; they are written to `coupling_BIJ`.
        """
        prior = self.weight_IPJD if prior_IJ is None else prior_IJ  # not read where there is none
        tensors = prior, coupling_BIJ, seen_BJD, coupling_BIJ
        return self._iterate(
            tensors, BACKWARD=False, WITH_PRIOR=prior_IJ is not None, WITH_NONE=with_none
        )

    def back(self, by_sum_BJD: Tensor, coupling_BIJ: Tensor, by_logit_BIJ: Tensor) -> Tensor:
        """The gradient by `seen` [B, J, D] from that by the sums; `by_logit_BIJ` is written."""
        tensors = self.weight_IPJD, coupling_BIJ, by_sum_BJD, by_logit_BIJ
        return self._iterate(tensors, BACKWARD=True, WITH_PRIOR=False, WITH_NONE=False)

    def _iterate(self, tensors: tuple[Tensor, ...], **switches: bool) -> Tensor:
        per_warp = TILE_BYTES // self.weight_IPJD.element_size()
        images = max(1, per_warp // self.tile)
        images = min(images, _power_of_two(self.num_images))
        image_tiles = _shares(self.num_images, images)
        parts = min(max(1, PROGRAMS // max(1, image_tiles)), max(1, self.num_children))
        children = _shares(self.num_children, parts)
        parts = _shares(self.num_children, max(1, children))
        by_part = self.pose_BIP.new_empty(parts, self.num_images, *self.weight_IPJD.shape[2:])
        self._launch(
            ITERATE,
            (image_tiles, parts),
            (*tensors, by_part),
            children,
            **switches,
            TILE_B=images,
            UNROLLED=min(LONGEST_UNROLLED, self.pose),
            num_warps=_warps(self.tile, per_warp),
        )
        return by_part.sum(dim=0)

    def gradients(
        self, weighted: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor] | None
    ) -> Gradients:
        """From the parts of rank one that the votes' gradient is the sum of: couplings [T, B, I, J]
        and the gradients by the sums [T, B, J, D], and, where it is full, those by the logits and
        what was seen.
        """
        size = self.weight_IPJD.element_size()
        columns = max(1, MOST_WEIGHT_BYTES // size // self.tile)
        columns = min(columns, _power_of_two(self.pose))
        column_tiles = _shares(self.pose, columns)
        most = max(1, _shares(self.num_images, SHORTEST_PART))
        parts = min(max(1, PROGRAMS // max(1, self.num_children * column_tiles)), most)
        images = _shares(self.num_images, parts)
        by_pose_BIP = torch.empty_like(self.pose_BIP)
        by_part = self.weight_IPJD.new_empty(parts, *self.weight_IPJD.shape)
        terms = (*weighted, *(weighted if seen is None else seen))  # not read where there is none
        self._launch(
            DIFFERENTIATE,
            (self.num_children, parts, column_tiles),
            (*terms, by_pose_BIP, by_part),
            images,
            T=len(weighted[0]),
            TILE_P=columns,
            FULL=seen is not None,
            num_warps=_warps(columns * self.tile, WEIGHT_BYTES // size),
        )
        return Gradients(by_pose_BIP, by_part[0] if parts == 1 else by_part.sum(dim=0))

    def _launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        tensors: tuple[Tensor, ...],
        in_a_part: int,
        **fixed: int,
    ) -> None:
        if has_numbers(self.pose_BIP):
            counts = self.num_images, self.num_children, in_a_part
            fixed |= self.sizes | FUSED
            with torch.cuda.device_of(self.pose_BIP):
                kernel[grid](self.pose_BIP, self.weight_IPJD, *tensors, *counts, **fixed)

    def first_sums(self, coupling_IJ: Tensor) -> Tensor:
        """sum_i c_ij u_hat_ij [B, J, D] of the couplings of every image."""
        sum_BE = self.pose_BIP.flatten(1) @ self._shared(coupling_IJ)
        return sum_BE.unflatten(1, self.weight_IPJD.shape[2:])

    def first_gradients(self, coupling_IJ: Tensor, by_sum_BJD: Tensor) -> tuple[Tensor, Gradients]:
        """That by the logits [I, J], summed over all images, and those of `first_sums`."""
        by_sum_BE = by_sum_BJD.flatten(1)
        by_pose_BX = by_sum_BE @ self._shared(coupling_IJ).T
        outer_XE = self.pose_BIP.flatten(1).T @ by_sum_BE
        outer_IPJD = outer_XE.view_as(self.weight_IPJD)
        weighted_IJ = coupling_IJ * (outer_IPJD * self.weight_IPJD).sum(dim=(1, 3))
        by_logit_IJ = weighted_IJ - coupling_IJ * weighted_IJ.sum(dim=1, keepdim=True)
        by_weight_IPJD = outer_IPJD * coupling_IJ[:, None, :, None]
        return by_logit_IJ, Gradients(by_pose_BX.view_as(self.pose_BIP), by_weight_IPJD)

    def _shared(self, coupling_IJ: Tensor) -> Tensor:
        """c_ij W_ij, [X, E]."""
        return (self.weight_IPJD * coupling_IJ[:, None, :, None]).flatten(2).flatten(0, 1)


def has_numbers(tensor: Tensor) -> bool:
    """Not where sizes alone are asked for: there nothing is launched."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def _shares(total: int, largest: int) -> int:
    """Into how many shares of at most `largest` the total falls."""
    return -(-total // largest)


def _power_of_two(size: int) -> int:
    """The smallest that holds `size`, which tiles must be."""
    return 1 << (size - 1).bit_length() if size > 1 else 1


def _warps(tile: int, per_warp: int) -> int:
    return min(MOST_WARPS, max(1, tile // per_warp))

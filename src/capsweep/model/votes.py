"""Votes, the input of every routing algorithm.

A child capsule votes for the pose of each parent above the child. The classes of this module hold
the child poses and the vote weights separately, so that a fast implementation of routing need not
compute the votes themselves.

Both classes can compute local votes. There are M parent positions. At each parent position there
are J types of parents, and L children are below the position. Each of these children votes for the
J parents. A child may be below several parent positions. `divide_children` computes the share of
each parent in a child; its option `norm` says which parents compete for the child. If the field
`given_BMLJ` is set, its couplings replace the couplings that a routing variant computes.

With 4x4 pose matrices, `form_numbers_first` computes each element of a vote as a sum of products,
with the children as the last axis in memory. For such matrices this is faster than matrix products.
The gradients are computed as matrix products, because autograd would sum tensors of the size of the
votes.

Shape letters: B batch, I children (in `ConvolutionalVotes`: child types at each of N positions),
J parents, P child pose, D parent pose; M parent positions, K kernel offsets, L = K I children below
one position; R S rows and columns of a pose matrix, D = R S; Q rows of a weight.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.model.routing import ReceptiveFields, coupling_softmax

LARGEST_SUM = 4  # most terms for which sums of products are faster than a matrix product
NUMBERS_AT_ONCE = (2**20, 2**27)  # most elements of votes: on a CPU (cache), on a GPU (memory)


@dataclass(frozen=True)
class Votes:
    """Linear votes u_hat_ij = W_ij u_i of fully connected capsules.

    Source: Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules", equation 2. All
    children are below the single parent position, so M = 1 and L = I.

    Attributes:
        pose_BIP: Poses u_i of the children.
        weight_IJDP: Vote weights W_ij.
        activation_BI: Activations of the children, for routing variants that read activations.
            None: not known.
        given_BMLJ: Couplings given by the caller. None: the variant computes the couplings.
    """

    CAPSULES: ClassVar = "vector capsules"  # name of these capsules in messages
    MODEL: ClassVar = "capsnet"  # a configuration of `model` with these capsules
    IMAGE_FIELDS: ClassVar = ("pose_BIP", "activation_BI")  # fields with an axis of images

    pose_BIP: Tensor
    weight_IJDP: Tensor
    activation_BI: Tensor | None = None
    given_BMLJ: Tensor | None = None

    def dense(self) -> Tensor:
        """Compute the votes u_hat [B, I, J, D], with one matrix product per child for the batch."""
        num_children, num_parents, parent_pose, child_pose = self.weight_IJDP.shape
        weight_IPE = self.weight_IJDP.reshape(num_children, -1, child_pose).transpose(1, 2)
        votes_IBE = torch.bmm(self.pose_BIP.transpose(0, 1), weight_IPE)  # E = J * D
        return votes_IBE.transpose(0, 1).unflatten(2, (num_parents, parent_pose))

    def form_local(self) -> Tensor:
        """Compute the votes [B, 1, I, J, D]; the axis of length 1 is the single parent position."""
        return self.dense()[:, None]

    def form_numbers_first(self) -> Tensor:
        """Compute the votes [B, 1, J, D, I]; the children are the last axis, also in memory."""
        batch, (_, parents, numbers, _) = len(self.pose_BIP), self.weight_IJDP.shape
        votes_IF = self.dense().transpose(0, 1).flatten(1)  # F = B J D
        return votes_IF.T.contiguous().unflatten(0, (batch, 1, parents, numbers))

    def local_poses(self) -> Tensor:
        """Return the poses [B, 1, I, P] of the children."""
        return self.pose_BIP[:, None]

    @property
    def numbers_per_image(self) -> int:
        """The number of elements in the votes of one image, I J D."""
        return self.weight_IJDP[..., 0].numel()

    @property
    def device(self) -> torch.device:
        """The device of the poses."""
        return self.pose_BIP.device

    def local_activation(self) -> Tensor:
        """Return the activations [B, 1, I] of the children.

        Raises:
            ValueError: If the votes have no activations.
        """
        if self.activation_BI is None:
            raise ValueError(
                "these votes have no child activations; set reads_activations = True in the class "
                "of this routing"
            )
        return self.activation_BI[:, None]

    def divide_children(
        self, logit_BMLJ: Tensor, norm: str = "all", none_of_the_above: bool = False
    ) -> Tensor:
        """Compute the share of each child that goes to each parent; the result is [B, 1, I, J].

        Args:
            logit_BMLJ: Routing logits.
            norm: The set of parents that share each child. This option has no effect here, because
                there is only one parent position.
            none_of_the_above: Whether a share of each child may go to no parent. The softmax then
                has an additional logit, 0, for this share.
        """
        return coupling_softmax(logit_BMLJ, None, norm, none_of_the_above)


@dataclass(frozen=True)
class ConvolutionalVotes:
    """Pose-matrix votes V = M W, for the pose matrix M of a child and a weight matrix W.

    Source: Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", section 2. All parent
    positions share the weights.

    Attributes:
        pose_BNIRS: Pose matrices of the children of I types at N positions.
        activation_BNI: Activations of the children.
        weight_KIJSS: Vote weights. If axis K has length 1, all kernel offsets share the weights.
        child_MK: Index of the child position at each kernel offset of each parent position.
        offset_KD: For each kernel offset, the D numbers that coordinate addition adds to the votes.
            None: no coordinate addition.
        given_BMLJ: Couplings given by the caller. None: the variant computes the couplings.
    """

    CAPSULES: ClassVar = "matrix capsules"  # name of these capsules in messages
    MODEL: ClassVar = "matrix_capsnet"  # a configuration of `model` with these capsules
    IMAGE_FIELDS: ClassVar = ("pose_BNIRS", "activation_BNI")  # fields with an axis of images

    pose_BNIRS: Tensor
    activation_BNI: Tensor
    weight_KIJSS: Tensor
    child_MK: Tensor
    offset_KD: Tensor | None = None
    given_BMLJ: Tensor | None = None

    def form_local(self) -> Tensor:
        """Compute the votes [B, M, L, J, D].

        The children of axis L are ordered by kernel offset, then by child type.
        """
        weight_KIJSS = self.weight_KIJSS.expand(self.child_MK.shape[1], -1, -1, -1, -1)
        pose_BMKIRS = self.pose_BNIRS[:, self.child_MK]
        votes = torch.einsum("bmkirq,kijqs->bmkijrs", pose_BMKIRS, weight_KIJSS).flatten(5)
        if self.offset_KD is not None:
            votes = votes + self.offset_KD[:, None, None]
        return votes.flatten(2, 3)

    def form_numbers_first(self) -> Tensor:
        """Compute the votes [B, M, J, D, L]; the children are the last axis, also in memory.

        If pose matrices have at most LARGEST_SUM columns, each element of a vote is computed as a
        sum of products. Otherwise the votes are computed as in `form_local`.
        """
        if self.pose_BNIRS.shape[4] > LARGEST_SUM:
            return self.form_local().permute(0, 1, 3, 4, 2).contiguous()
        weight_KIJSS = self.weight_KIJSS.expand(self.child_MK.shape[1], -1, -1, -1, -1)
        pose_BMLRS = self.pose_BNIRS[:, self.child_MK].flatten(2, 3)
        votes_BMJDL = _PoseProducts.apply(pose_BMLRS, weight_KIJSS.flatten(0, 1))
        if self.offset_KD is not None:
            types = self.weight_KIJSS.shape[1]
            votes_BMJDL = votes_BMJDL + self.offset_KD.T.repeat_interleave(types, dim=1)
        return votes_BMJDL

    def local_poses(self) -> Tensor:
        """Return the poses [B, M, L, R S] of the children below each parent position."""
        return self.pose_BNIRS[:, self.child_MK].flatten(4).flatten(2, 3)

    @property
    def numbers_per_image(self) -> int:
        """The number of elements in the votes of one image, M K I J D."""
        _, types, parents, _, columns = self.weight_KIJSS.shape
        rows = self.pose_BNIRS.shape[3]
        return self.child_MK.numel() * types * parents * rows * columns

    @property
    def device(self) -> torch.device:
        """The device of the poses."""
        return self.pose_BNIRS.device

    def local_activation(self) -> Tensor:
        """Return the activations [B, M, L] of the children below each parent position."""
        return self.activation_BNI[:, self.child_MK].flatten(2)

    def divide_children(
        self, logit_BMLJ: Tensor, norm: str = "all", none_of_the_above: bool = False
    ) -> Tensor:
        """Compute the share of each child that goes to each parent; the result is [B, M, L, J].

        Args:
            logit_BMLJ: Routing logits.
            norm: The parents that share a child. "all": all types at all positions above the child.
                "types": all types at one position, separately for each position above the child.
                "positions": one type at all positions above the child, separately for each type.
            none_of_the_above: Whether a share of each child may go to no parent. The softmax then
                has an additional logit, 0, for this share.
        """
        if len(self.child_MK) == 1:
            return coupling_softmax(logit_BMLJ, None, norm, none_of_the_above)
        fields = ReceptiveFields(self.child_MK, self.pose_BNIRS.shape[1])
        return coupling_softmax(logit_BMLJ, fields, norm, none_of_the_above)


LocalVotes = Votes | ConvolutionalVotes


def split_images(votes: LocalVotes, images: int | None = None) -> list[LocalVotes]:
    """Split the votes of a batch of images into the votes of smaller batches.

    Args:
        votes: Votes of all images.
        images: Number of images in each smaller batch. None: as many as fit into the cache of a CPU
            or the memory of a GPU.
    """
    if images is None:
        most = NUMBERS_AT_ONCE[votes.device.type == "cuda"]
        images = max(1, most // votes.numbers_per_image)
    fields = {name: getattr(votes, name) for name in votes.IMAGE_FIELDS}
    parts = {name: tensor.split(images) for name, tensor in fields.items() if tensor is not None}
    return [
        replace(votes, **dict(zip(parts, part, strict=True)))
        for part in zip(*parts.values(), strict=True)
    ]


class _PoseProducts(torch.autograd.Function):
    """An autograd function for votes V_rs = sum_q M_rq W_qs of shape [B, M, J, D, L]."""

    @staticmethod
    def forward(ctx: Any, pose_BMLRQ: Tensor, weight_LJQS: Tensor) -> Tensor:
        ctx.save_for_backward(pose_BMLRQ, weight_LJQS)
        batch, positions, children, rows, _ = pose_BMLRQ.shape
        _, parents, _, columns = weight_LJQS.shape
        sizes = (rows, columns, children)
        pose_QBM1RSL = pose_BMLRQ.permute(4, 0, 1, 3, 2)[:, :, :, None, :, None]
        pose_QBM1E = pose_QBM1RSL.expand(-1, -1, -1, -1, *sizes).flatten(4)
        weight_QJRSL = weight_LJQS.permute(2, 1, 3, 0)[:, :, None].expand(-1, -1, *sizes)
        weight_QJE = weight_QJRSL.flatten(2)
        votes_BMJE = pose_QBM1E[0] * weight_QJE[0]
        for pose_BM1E, weight_JE in zip(pose_QBM1E[1:], weight_QJE[1:], strict=True):
            votes_BMJE.addcmul_(pose_BM1E, weight_JE)
        return votes_BMJE.view(batch, positions, parents, rows * columns, children)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_votes_BMJDL: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradients of poses and weights from the gradient of the votes.

        Let X' be the gradient with respect to X. M' is the sum of V' W^T over the parents. W' is
        the sum of M^T V' over images and positions. Second derivatives raise an error.
        """
        pose_BMLRQ, weight_LJQS = ctx.saved_tensors
        batch, positions, _, rows, _ = pose_BMLRQ.shape
        _, parents, _, columns = weight_LJQS.shape
        by_votes_BMJRSL = by_votes_BMJDL.unflatten(3, (rows, columns))
        by_votes_LEF = by_votes_BMJRSL.permute(5, 0, 1, 3, 2, 4).flatten(4).flatten(1, 3)
        pose_LEQ = pose_BMLRQ.permute(2, 0, 1, 3, 4).flatten(1, 3)
        weight_LFQ = weight_LJQS.transpose(2, 3).flatten(1, 2)
        by_pose_LEQ = torch.bmm(by_votes_LEF, weight_LFQ)
        by_weight_LQF = torch.bmm(pose_LEQ.transpose(1, 2), by_votes_LEF)
        by_pose_LBMRQ = by_pose_LEQ.unflatten(1, (batch, positions, rows))
        by_weight_LQJS = by_weight_LQF.unflatten(2, (parents, columns))
        return by_pose_LBMRQ.permute(1, 2, 0, 3, 4), by_weight_LQJS.transpose(1, 2)

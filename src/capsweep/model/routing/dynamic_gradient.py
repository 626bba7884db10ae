"""The gradient of `dynamic_fast`, from what its iterations leave.

Shape letters: B batch, I children, J parents, P child pose, D parent pose; i children at a time; E
= J D.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from capsweep.model.routing.dynamic_iterations import Iteration, Linear, Options
from capsweep.model.squash import squash_gradient


@dataclass
class Term:
    """A rank-one part of the votes' gradient: weight_ij vector_j."""

    weight_JIB: Tensor
    vector_JDB: Tensor


class Backward:
    """The gradients of one routing."""

    def __init__(self, linear: Linear, done: list[Iteration], options: Options) -> None:
        self.linear, self.done, self.options = linear, done, options
        self.terms: list[Term] = []
        self.bias_JD = torch.zeros_like(done[0].s_JDB[:, :, 0])
        self.prior_JI = torch.zeros_like(done[0].coupling_JIB[:, :, 0])

    def run(self, v_JDB: Tensor, with_prior: bool) -> None:
        """Go back from the gradient by the last v."""
        seen_JDB = torch.zeros_like(v_JDB)
        for iteration in reversed(self.done):
            s_JDB = squash_gradient(iteration.s_JDB, v_JDB, dim=1)
            self.bias_JD += s_JDB.sum(dim=2)
            self.terms.append(Term(iteration.coupling_JIB, s_JDB))
            passes_on = self.options.full and iteration.seen_JDB is not None
            if with_prior or passes_on:
                logit_JIB = self._through_couplings(iteration, s_JDB, seen_JDB)
                if with_prior:
                    self.prior_JI += logit_JIB.sum(dim=2)
                if passes_on:
                    assert iteration.seen_JDB is not None
                    self.terms.append(Term(logit_JIB, iteration.seen_JDB))
            if not self.options.full:
                return
            v_JDB = seen_JDB

    def _through_couplings(self, iteration: Iteration, s_JDB: Tensor, seen_JDB: Tensor) -> Tensor:
        """The gradient by the logits; that by V is added to `seen_JDB`: all v before have it."""
        coupling_JIB = iteration.coupling_JIB
        logit_JIB = s_JDB.new_empty(*coupling_JIB.shape[:2], s_JDB.shape[2])
        for part in self.linear.parts(self.linear.pose_IPB.shape[1]):
            coupling_JiB = coupling_JIB[:, part]
            weighted_JiB = self.linear.agreement(part, s_JDB).mul_(coupling_JiB)
            logit_JiB = weighted_JiB - coupling_JiB * weighted_JiB.sum(dim=0)
            self.linear.add_weighted(seen_JDB, part, logit_JiB)
            logit_JIB[:, part] = logit_JiB
        return logit_JIB

    def by_weights_and_poses(self, weight_IJDP: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients [I, J, D, P] and [B, I, P]."""
        pose_IPB = self.linear.pose_IPB
        weight_IEP = weight_IJDP.flatten(1, 2)
        by_weight_IEP, by_pose_IPB = torch.empty_like(weight_IEP), torch.empty_like(pose_IPB)
        for part in self.linear.parts(weight_IJDP.shape[2]):
            votes_iEB = self._by_votes(part).flatten(1, 2)
            torch.bmm(votes_iEB, pose_IPB[part].transpose(1, 2), out=by_weight_IEP[part])
            torch.bmm(weight_IEP[part].transpose(1, 2), votes_iEB, out=by_pose_IPB[part])
        return by_weight_IEP.view_as(weight_IJDP), by_pose_IPB.permute(2, 0, 1)

    def _by_votes(self, part: slice) -> Tensor:
        """[i, J, D, B]."""
        first, *others = self.terms
        weights = [term.weight_JIB[:, part].transpose(0, 1)[:, :, None] for term in self.terms]
        votes_iJDB = self.linear.numbers(len(weights[0]), *first.vector_JDB.shape)
        torch.mul(weights[0], first.vector_JDB, out=votes_iJDB)
        for weight_iJ1B, term in zip(weights[1:], others, strict=True):
            votes_iJDB.addcmul_(weight_iJ1B, term.vector_JDB)
        return votes_iJDB

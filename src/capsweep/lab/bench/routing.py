"""Dynamic routing, the layer of CapsNet on MNIST: time and memory of one call, against baselines.

`textbook` is procedure 1 of "Dynamic Routing Between Capsules" as printed and as public PyTorch
code has it, every intermediate a tensor of its own. `bmm` is plain products of matrices, the honest
rival. Both run under autograd, and are no variants of this project. Extra memory
is by how much a fresh process grows in a call, beyond its inputs.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measured
from capsweep.lab.bench.comparison import (
    Results,
    Seconds,
    check_parity,
    find_faults,
    make_row,
    measure_extra_memory,
    median_ratio,
    time_in_turns,
)
from capsweep.model.capsules import squash
from capsweep.model.routing import Routed, dynamic
from capsweep.model.votes import Votes
from capsweep.training.devices import using_threads

Route = Callable[..., Routed]
FORWARD, BOTH = "forward", "forward + backward"
PASSES = (FORWARD, BOTH)
# Of a pass: what must be faster than what, and at least how many times.
CORE_BARS = (
    (BOTH, "fast", "textbook", 5.0),
    (FORWARD, "fast", "textbook", 10.0),
    (BOTH, "fast", "bmm", 2.0),
)
GPU_BARS = ((BOTH, "fast", "bmm", 1.0), (BOTH, "triton", "fast", 1.0))
GATE_ITERATIONS = (1, 2, 3, 5)
TOLERANCE = 1e-9  # in float64


def route_by_textbook(votes: Votes, num_iters: int, bias_JD: Tensor | None = None) -> Routed:
    """Procedure 1, line by line; logits are updated after the last iteration too."""
    weight_1IJDP, pose_BI1P1 = votes.weight_IJDP[None], votes.pose_BIP[:, :, None, :, None]
    votes_BIJD = torch.matmul(weight_1IJDP, pose_BI1P1).squeeze(-1)
    logit_BIJ = votes_BIJD.new_zeros(votes_BIJD.shape[:3])
    coupling_BIJ, v_BJD = logit_BIJ, votes_BIJD[:, 0]
    for _ in range(num_iters):
        coupling_BIJ = torch.softmax(logit_BIJ, dim=2)
        s_BJD = (coupling_BIJ[..., None] * votes_BIJD).sum(dim=1)
        v_BJD = squash(s_BJD if bias_JD is None else s_BJD + bias_JD)
        logit_BIJ = logit_BIJ + (votes_BIJD * v_BJD[:, None]).sum(dim=-1)
    return Routed(v_BJD, torch.linalg.vector_norm(v_BJD, dim=-1), coupling_BIJ)


def route_by_bmm(votes: Votes, num_iters: int, bias_JD: Tensor | None = None) -> Routed:
    """Procedure 1 in products of matrices: votes by one product per child, laid out so that sums
    and agreements are products too; constant first couplings, no update that nothing reads.
    """
    votes_BJID = votes.dense().transpose(1, 2).contiguous()
    batch, parents, children, _ = votes_BJID.shape
    coupling_BJ1I = votes_BJID.new_full((batch, parents, 1, children), 1 / parents)
    v_BJD = _sum_and_squash(coupling_BJ1I, votes_BJID, bias_JD)
    logit_BJI1: Tensor | None = None
    for _ in range(num_iters - 1):
        agreement_BJI1 = torch.matmul(votes_BJID, v_BJD[..., None])
        logit_BJI1 = agreement_BJI1 if logit_BJI1 is None else logit_BJI1 + agreement_BJI1
        coupling_BJ1I = torch.softmax(logit_BJI1, dim=1).transpose(2, 3)
        v_BJD = _sum_and_squash(coupling_BJ1I, votes_BJID, bias_JD)
    coupling_BIJ = coupling_BJ1I.squeeze(2).transpose(1, 2)
    return Routed(v_BJD, torch.linalg.vector_norm(v_BJD, dim=-1), coupling_BIJ)


def _sum_and_squash(coupling_BJ1I: Tensor, votes_BJID: Tensor, bias_JD: Tensor | None) -> Tensor:
    s_BJD = torch.matmul(coupling_BJ1I, votes_BJID).squeeze(2)
    return squash(s_BJD if bias_JD is None else s_BJD + bias_JD)


def replace_routing(network: nn.Module, route: Route) -> None:
    """Let a baseline route all layers of the network. It knows no options of routing: the parity
    gate shows where a network has others than the plain ones.
    """
    layers: list[Any] = [m for m in network.modules() if isinstance(m, dynamic.DynamicRouting)]
    for layer in layers:
        layer.route = lambda votes, num_iters, bias_JD, **_: route(votes, num_iters, bias_JD)


class RoutingSizes(NamedTuple):
    """B, I, J, P, D, T."""

    batch: int = 128
    children: int = 1152
    parents: int = 10
    child_pose: int = 8
    parent_pose: int = 16
    num_iters: int = 3


MNIST_LAYER = RoutingSizes()
# Awkward sizes, and the layer that is measured, with more images than fit a chunk.
GATE = (RoutingSizes(3, 11, 5, 4, 7), RoutingSizes(batch=33))
QUICK = {"routing": {"sizes": RoutingSizes(batch=2, num_iters=2), "budget": 0.0, "gate": GATE[:1]}}


class RoutingProblem:
    """Votes, bias, and the gradients that come from above, drawn once."""

    def __init__(self, sizes: RoutingSizes, dtype: torch.dtype = torch.float32) -> None:
        self.sizes = sizes
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
            return numbers.to(bench.get_device(), dtype)

        s = sizes
        self.pose_BIP = normal(s.batch, s.children, s.child_pose, scale=0.1)
        self.weight_IJDP = normal(s.children, s.parents, s.parent_pose, s.child_pose, scale=0.3)
        self.bias_JD = torch.full_like(self.weight_IJDP[0, :, :, 0], 0.1)
        self.gradients = normal(s.batch, s.parents, s.parent_pose), normal(s.batch, s.parents)

    def make_call(self, route: Route, which: str) -> Callable[[], object]:
        """One pass: forward alone without autograd, or with all gradients."""
        if which == BOTH:
            return lambda: self.compute_results(route)
        votes = Votes(self.pose_BIP, self.weight_IJDP)
        return torch.no_grad()(lambda: route(votes, self.sizes.num_iters, self.bias_JD))

    def compute_results(self, route: Route) -> Results:
        """Poses and activations of the parents, and the gradients of all inputs."""
        names = ("pose_BIP", "weight_IJDP", "bias_JD")
        inputs = [getattr(self, name).detach().requires_grad_() for name in names]
        pose_BIP, weight_IJDP, bias_JD = inputs
        routed = route(Votes(pose_BIP, weight_IJDP), self.sizes.num_iters, bias_JD)
        outputs = {"pose_BJD": routed.pose_BJD, "act_BJ": routed.act_BJ}
        gradients = torch.autograd.grad((*outputs.values(),), inputs, self.gradients)
        named = zip(names, gradients, strict=True)
        return outputs | {f"gradient of {name}": gradient for name, gradient in named}


def list_candidates() -> dict[str, Route]:
    """By name: the baselines, and what the variant has beside its reference. Triton's kernel needs
    a GPU.
    """
    without = {"reference"} if bench.is_gpu() else {"reference", "triton"}
    variants = {name: route for name, route in dynamic.IMPLS.items() if name not in without}
    return {"textbook": route_by_textbook, "bmm": route_by_bmm, **variants}


def check_route(route: Route, gate: Sequence[RoutingSizes] = GATE) -> None:
    """Raise CandidateError unless a candidate gives the reference's outputs and gradients."""
    for sizes in gate:
        for num_iters in GATE_ITERATIONS:
            problem = RoutingProblem(sizes._replace(num_iters=num_iters), torch.float64)
            expected = problem.compute_results(dynamic.reference)
            check_parity(expected, problem.compute_results(route), TOLERANCE)


def measure_routing(
    sizes: RoutingSizes = MNIST_LAYER, budget: float = 4.0, gate: Sequence[RoutingSizes] = GATE
) -> BenchReport:
    """Return both passes of all candidates without faults. budget: least seconds of each. gate:
    sizes at which a candidate must give what the reference gives.
    """
    seconds: dict[str, Seconds] = {}
    rows: list[dict[str, Any]] = []
    with using_threads(bench.THREADS):
        faults = find_faults(
            {n: partial(check_route, route, gate) for n, route in list_candidates().items()}
        )
        candidates = {n: route for n, route in list_candidates().items() if n not in faults}
        problem = RoutingProblem(sizes)
        for which in PASSES:
            calls = {
                name: partial(bench.time_call, problem.make_call(route, which))
                for name, route in candidates.items()
            }
            seconds[which] = time_in_turns(calls, budget)
            for name in candidates:
                extra = measure_extra_memory(prepare_call, name, sizes, which)
                row = {"B": sizes.batch, "T": sizes.num_iters, "pass": which}
                row |= make_row(seconds[which], name, sizes.batch)
                rows.append(row | {"extra MB": extra / 1e6})
    extra = {row["candidate"]: row["extra MB"] for row in rows}  # of the last pass, both
    return BenchReport(judge_routing(seconds, extra), rows, faults)


def prepare_call(name: str, sizes: RoutingSizes, which: str) -> Callable[[], object]:
    """Return a call of a candidate. A tiny one comes first, for what is made once a process:
    threads, and buffers of the libraries.
    """
    route = list_candidates()[name]
    RoutingProblem(sizes._replace(batch=2, children=16)).make_call(route, which)()
    return RoutingProblem(sizes).make_call(route, which)


def judge_routing(seconds: Mapping[str, Seconds], extra: Mapping[str, float]) -> list[Measured]:
    """Return the bars of the routing layer, B = 128, T = 3: on two cores, or on a GPU, where a
    kernel that is not faster should go. extra: memory of forward and backward, by candidate.
    """
    measured = []
    for which, fast, slow, bar in GPU_BARS if bench.is_gpu() else CORE_BARS:
        ratio = median_ratio(seconds[which], slow, fast)
        what = f"routing, {which}: {fast} over {slow}"
        measured.append(Measured(what, ratio, "x", bar, at_least=True))
    if not bench.is_gpu():
        what = f"routing, {BOTH}: extra memory of fast, of textbook's"
        share = extra["fast"] / extra["textbook"] if {"fast", "textbook"} <= extra.keys() else None
        measured.append(Measured(what, share, "x", 1 / 8))
    return measured

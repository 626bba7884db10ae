"""Time and memory of one call of dynamic routing, compared with two baselines.

The layer has the size of the routed layer of CapsNet on MNIST. The baseline `textbook` follows
procedure 1 of "Dynamic Routing Between Capsules" line by line, as public PyTorch code does. It
keeps every intermediate result as a tensor. The baseline `bmm` computes the same results faster,
with batched matrix products. Both baselines use autograd. They are not routing variants of this
project. Extra memory is the growth of the process's memory during the calls. The inputs of the
calls are not counted.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measurement
from capsweep.lab.bench.comparison import Candidate, Results, compare
from capsweep.model.capsules import squash
from capsweep.model.routing import Routed, dynamic
from capsweep.model.votes import Votes

Route = Callable[..., Routed]
FORWARD, BOTH = "forward", "forward + backward"
CORE_BARS = (
    (BOTH, "fast", "over textbook", 5.0),
    (FORWARD, "fast", "over textbook", 10.0),
    (BOTH, "fast", "over bmm", 2.0),
)
GPU_BARS = ((BOTH, "fast", "over bmm", 1.0), (BOTH, "triton", "over fast", 1.0))
MEMORY_BAR = 1 / 8  # largest allowed (extra memory of `fast`) / (extra memory of `textbook`)
Sizes = tuple[int, int, int, int, int, int]  # B, I, J, P, D, T
TOLERANCE = 1e-3  # large, because the gradient of the weights is a float32 sum over all images


def route_by_textbook(votes: Votes, num_iters: int, bias_JD: Tensor | None = None) -> Routed:
    """Route by procedure 1 of "Dynamic Routing Between Capsules", line by line.

    The last iteration also updates the logits, as in the printed procedure.
    """
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
    """Route by procedure 1 with batched matrix products.

    Votes are stored as [B, J, I, D], so that weighted sums and agreements are matrix products. In
    the first iteration all couplings are 1 / J. The last iteration does not update the logits.
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
    """Make all dynamic routing layers of a network use the routing function of a baseline.

    The function gets the votes, the number of iterations and the bias. All other options of a
    routing layer are ignored. If a network sets one of the ignored options, the results of the
    network differ from the reference.
    """
    layers: list[Any] = [m for m in network.modules() if isinstance(m, dynamic.DynamicRouting)]
    for layer in layers:
        layer.route = lambda votes, num_iters, bias_JD, **_: route(votes, num_iters, bias_JD)


ROUTES = {"textbook": route_by_textbook, "bmm": route_by_bmm, **dynamic.IMPLS}


MNIST_LAYER = (128, 1152, 10, 8, 16, 3)


class RoutingProblem:
    """A routing function with random inputs, and with random gradients for its outputs.

    Args:
        route: Function that routes the votes.
        sizes: Number of images, number of children, number of parents, size of a child pose, size
            of a parent pose, number of iterations.
        case: FORWARD for the forward pass only, or BOTH for the forward and the backward pass.
        dtype: Data type of all tensors.
    """

    def __init__(
        self, route: Route, sizes: Sizes, case: str = BOTH, dtype: torch.dtype = torch.float32
    ) -> None:
        self.route, self.case = route, case
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
            return numbers.to(bench.get_device(), dtype)

        batch, children, parents, child_pose, parent_pose, self.num_iters = sizes
        pose_BIP = normal(batch, children, child_pose, scale=0.1)
        weight_IJDP = normal(children, parents, parent_pose, child_pose, scale=0.3)
        self.inputs = pose_BIP, weight_IJDP, torch.full_like(weight_IJDP[0, :, :, 0], 0.1)
        self.gradients = normal(batch, parents, parent_pose), normal(batch, parents)

    def __call__(self) -> object:
        """Route once; for BOTH run the backward pass too, for FORWARD route without autograd."""
        if self.case == BOTH:
            return self.compute_results()
        with torch.no_grad():
            return self._route(*self.inputs)

    def compute_results(self) -> Results:
        """Compute the poses and activations of the parents, and the gradients of all inputs."""
        inputs = [tensor.detach().requires_grad_() for tensor in self.inputs]
        routed = self._route(*inputs)
        outputs = {"pose_BJD": routed.pose_BJD, "act_BJ": routed.act_BJ}
        gradients = torch.autograd.grad((*outputs.values(),), inputs, self.gradients)
        names = ("gradient of pose_BIP", "gradient of weight_IJDP", "gradient of bias_JD")
        return outputs | dict(zip(names, gradients, strict=True))

    def _route(self, pose_BIP: Tensor, weight_IJDP: Tensor, bias_JD: Tensor) -> Routed:
        return self.route(Votes(pose_BIP, weight_IJDP), self.num_iters, bias_JD)


@lru_cache(maxsize=1)
def compute_expected(sizes: Sizes) -> Results:
    """Compute the results of `dynamic.reference`, the reference implementation of routing."""
    return RoutingProblem(dynamic.reference, sizes).compute_results()


def measure_routing(is_quick: bool = False) -> BenchReport:
    """Measure the baselines and the fast implementations, with and without the backward pass.

    The bars on a CPU are for two cores. The Triton kernel is measured only on a GPU. If the Triton
    kernel is not faster than `fast`, the project should remove the Triton kernel.
    """
    report, sizes = BenchReport(), (2, *MNIST_LAYER[1:]) if is_quick else MNIST_LAYER
    without = {"reference"} if bench.is_gpu() else {"reference", "triton"}
    expected = partial(compute_expected, sizes)
    for case in (FORWARD, BOTH):
        candidates = {
            name: Candidate(partial(RoutingProblem, route, sizes, case), expected, TOLERANCE)
            for name, route in ROUTES.items()
            if name not in without
        }
        compare(report, case, sizes[0], candidates, 0.0 if is_quick else 4.0)
    report.judge(GPU_BARS if bench.is_gpu() else CORE_BARS)
    fast, textbook = (report.find(BOTH, name, "extra MB") for name in ("fast", "textbook"))
    if fast and textbook and not bench.is_gpu():
        what = f"{BOTH}, extra memory of fast / textbook"
        report.numbers.append(Measurement(what, fast / textbook, "x", MEMORY_BAR))
    return report

"""EM routing against procedure 1, written out.

Shape letters: B batch, M parent positions, K kernel offsets, L = K I children below one, J parent
types, D parent pose, T iterations.
"""

import itertools

import pytest
import torch
from em_procedure import Grid, Layer, assert_as_written_out, em_procedure, layer
from torch import Tensor

from capsweep.model.routing.em import IMPLS, Procedure
from capsweep.model.votes import LocalVotes, Routed, Votes

STRIDE_1, STRIDE_2 = Grid(3, 4, kernel=2, stride=1), Grid(5, 6, kernel=3, stride=2)
WHOLE = Grid(2, 3, kernel=3, stride=1)._replace(rows=3)  # one parent position, above all children
WARM = Procedure(inverse_temperature=1.0)  # parents neither silent nor saturated

every_impl = pytest.mark.parametrize("impl", IMPLS)
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])
norms = pytest.mark.parametrize("norm", ["all", "types", "positions"])
strides = pytest.mark.parametrize("grid", [STRIDE_1, STRIDE_2], ids=["stride-1", "stride-2"])


def route(impl: str, given: Layer, num_iters: int, procedure: Procedure = WARM) -> Routed:
    """Route a layer, and keep the trace."""
    return IMPLS[impl](
        given.votes, num_iters, given.beta_u_J, given.beta_a_J, True, procedure=procedure
    )


def voted(votes_BIJD: Tensor, activation_BI: Tensor | None = None) -> Votes:
    """Children that vote as told, for one item; present unless told otherwise."""
    pose_BI1 = votes_BIJD.new_ones(1, votes_BIJD.shape[1], 1)
    present_BI = pose_BI1[..., 0] if activation_BI is None else activation_BI
    return Votes(pose_BI1, votes_BIJD[0, ..., None], present_BI)


def dense(impl: str, votes: LocalVotes, num_iters: int, procedure: Procedure = WARM) -> Routed:
    """Route with betas of zero, and keep the trace."""
    beta_J = torch.zeros(votes.num_parents, dtype=votes.form_local().dtype)
    return IMPLS[impl](votes, num_iters, beta_J, beta_J, True, procedure=procedure)


def traced(routed: Routed, key: str) -> list[Tensor]:
    """What a trace says of each iteration."""
    assert routed.trace is not None
    return [step[key] for step in routed.trace]


@every_impl
@strides
@norms
@pytest.mark.parametrize("r0", ["all", "types"])
@pytest.mark.parametrize(
    ("activation", "mass_norm"), [("cost", "sum"), ("cost", "ratio"), ("mixing", "sum")]
)
def test_every_iteration_is_that_of_procedure_1(
    impl: str, grid: Grid, norm: str, r0: str, activation: str, mass_norm: str
) -> None:
    procedure = Procedure(1.0, norm=norm, r0=r0, mass_norm=mass_norm, activation=activation)
    given = layer(grid, child_types=2, parent_types=3)
    routed = route(impl, given, 3, procedure)
    assert routed.trace is not None
    for item in range(2):
        assert_as_written_out(
            routed.trace, item, given, em_procedure(item, given, procedure, num_iters=3)
        )


@every_impl
@norms
def test_where_there_is_one_position_a_child_divides_itself_among_the_types(
    impl: str, norm: str
) -> None:
    given, procedure = layer(WHOLE, child_types=2, parent_types=3), Procedure(1.0, norm=norm)
    routed = route(impl, given, 3, procedure)
    assert routed.trace is not None
    assert_as_written_out(routed.trace, 0, given, em_procedure(0, given, procedure, num_iters=3))
    for coupling_BMLJ in traced(routed, "coupling"):
        sums_BML = coupling_BMLJ.sum(dim=3)
        torch.testing.assert_close(sums_BML, torch.ones_like(sums_BML), rtol=0, atol=1e-12)


@every_impl
@iterations
@pytest.mark.parametrize("shared", [False, True], ids=["own-weights", "shared-weights"])
@pytest.mark.parametrize("grid", [STRIDE_1, STRIDE_2, WHOLE], ids=["stride-1", "stride-2", "whole"])
def test_coordinates_are_added_to_votes_before_they_are_routed(
    impl: str, grid: Grid, shared: bool, num_iters: int
) -> None:
    given = layer(grid, child_types=2, parent_types=3, with_offset=True)
    if shared:
        given = given._replace(weight_KIJSS=given.weight_KIJSS[:1])
    routed = route(impl, given, num_iters)
    expected = em_procedure(0, given, WARM, num_iters)
    assert routed.trace is not None
    assert_as_written_out(routed.trace, 0, given, expected)
    for number, activation in enumerate(expected[-1].activation.values()):
        assert routed.act_BJ[0, number].item() == pytest.approx(activation, abs=1e-10)
    torch.testing.assert_close(routed.pose_BJD, traced(routed, "pose")[-1].flatten(1, 2))
    assert routed.logit_BJ is not None
    torch.testing.assert_close(routed.logit_BJ.sigmoid(), routed.act_BJ)


@every_impl
@pytest.mark.parametrize(
    ("norm", "activation"),
    [("all", "cost"), ("types", "cost"), ("positions", "cost"), ("all", "mixing")],
)
@pytest.mark.parametrize("grid", [Grid(3, 3, 2, 1), Grid(3, 5, 3, 2)], ids=["stride-1", "stride-2"])
def test_gradients_of_three_iterations_are_those_of_the_function(
    impl: str, grid: Grid, norm: str, activation: str
) -> None:
    given = layer(grid, child_types=1, parent_types=2, with_offset=True)
    procedure = Procedure(1.0, norm=norm, activation=activation)
    inputs = [given.pose_BNIRS[:1], given.activation_BNI[:1], given.weight_KIJSS]
    betas = [given.beta_u_J, given.beta_a_J] if activation == "cost" else []

    def outputs(pose: Tensor, act: Tensor, weight: Tensor, *betas: Tensor) -> tuple[Tensor, ...]:
        one = given._replace(pose_BNIRS=pose, activation_BNI=act, weight_KIJSS=weight)
        if betas:
            one = one._replace(beta_u_J=betas[0], beta_a_J=betas[1])
        routed = route(impl, one, 3, procedure)
        return routed.pose_BJD, routed.act_BJ

    leaves = [x.clone().requires_grad_() for x in (*inputs, *betas)]
    assert torch.autograd.gradcheck(outputs, leaves)


@every_impl
@iterations
@norms
def test_activations_of_children_matter_as_much_as_their_poses(
    impl: str, num_iters: int, norm: str
) -> None:
    given = layer(STRIDE_2, child_types=2, parent_types=3)
    pose, act = (x.clone().requires_grad_() for x in (given.pose_BNIRS, given.activation_BNI))
    procedure = Procedure(1.0, norm=norm)
    routed = route(impl, given._replace(pose_BNIRS=pose, activation_BNI=act), num_iters, procedure)
    (routed.pose_BJD.square().sum() + routed.act_BJ.sum()).backward()
    assert pose.grad is not None
    assert act.grad is not None
    assert 0.2 < (act.grad.norm() / pose.grad.norm()).item() < 5


@every_impl
def test_three_iterations_find_two_planted_clusters(impl: str) -> None:
    # Half of the children agree about parent 0 and are at odds about parent 1, half the reverse.
    generator = torch.Generator().manual_seed(0)
    votes_BIJD = torch.randn(1, 40, 2, 16, generator=generator, dtype=torch.float64)
    votes_BIJD[:, :20, 0] = 1 + 0.1 * votes_BIJD[:, :20, 0]
    votes_BIJD[:, 20:, 1] = -1 + 0.1 * votes_BIJD[:, 20:, 1]
    routed = dense(impl, voted(votes_BIJD), 3)
    couplings = [coupling[0, 0] for coupling in traced(routed, "coupling")]
    assert (couplings[-1][:20, 0] > 0.99).all()
    assert (couplings[-1][20:, 1] > 0.99).all()
    entropies = [torch.special.entr(coupling_IJ).sum().item() for coupling_IJ in couplings]
    assert entropies[0] == pytest.approx(40 * torch.tensor(2.0).log().item())
    assert all(after < before for before, after in itertools.pairwise(entropies))
    pose_JD = routed.pose_BJD[0]
    torch.testing.assert_close(pose_JD[0], torch.ones(16).double(), rtol=0, atol=0.1)
    torch.testing.assert_close(pose_JD[1], -torch.ones(16).double(), rtol=0, atol=0.1)


ODD = {
    "equal-votes": (torch.full((1, 6, 3, 16), 0.7), torch.ones(1, 6)),
    "one-child": (torch.linspace(-1, 1, 48).reshape(1, 1, 3, 16), torch.ones(1, 1)),
    "nobody-present": (torch.linspace(-1, 1, 288).reshape(1, 6, 3, 16), torch.zeros(1, 6)),
}


@every_impl
@iterations
@pytest.mark.parametrize("activation", ["cost", "mixing"])
@pytest.mark.parametrize("published", [False, True], ids=["betas-of-zero", "betas-of-the-authors"])
@pytest.mark.parametrize("case", ODD)
def test_odd_votes_give_finite_values_and_gradients(
    impl: str, case: str, published: bool, activation: str, num_iters: int
) -> None:
    votes_BIJD, activation_BI = (x.clone().requires_grad_() for x in ODD[case])
    beta_u, beta_a = (0.709, -1250.0) if published else (0.0, 0.0)
    betas = [torch.full((3,), beta).requires_grad_() for beta in (beta_u, beta_a)]
    procedure = Procedure(0.02, activation=activation)
    votes = voted(votes_BIJD, activation_BI)
    routed = IMPLS[impl](votes, num_iters, *betas, procedure=procedure)
    (routed.pose_BJD.sum() + routed.act_BJ.sum()).backward()
    used = betas if activation == "cost" else []
    for x in (
        routed.pose_BJD,
        routed.act_BJ,
        *(x.grad for x in (votes_BIJD, activation_BI, *used)),
    ):
        assert x is not None
        assert x.dtype == torch.float32
        assert x.isfinite().all()


@every_impl
@strides
def test_the_order_of_types_does_not_matter(impl: str, grid: Grid) -> None:
    given = layer(grid, child_types=3, parent_types=4)
    child_I, parent_J = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    shuffled = given._replace(
        pose_BNIRS=given.pose_BNIRS[:, :, child_I],
        activation_BNI=given.activation_BNI[:, :, child_I],
        weight_KIJSS=given.weight_KIJSS[:, child_I][:, :, parent_J],
        beta_u_J=given.beta_u_J[parent_J],
        beta_a_J=given.beta_a_J[parent_J],
    )
    before, after = route(impl, given, 3), route(impl, shuffled, 3)
    pose_BMJD, after_BMJD = (x.pose_BJD.unflatten(1, (-1, 4)) for x in (before, after))
    act_BMJ, after_BMJ = (x.act_BJ.unflatten(1, (-1, 4)) for x in (before, after))
    torch.testing.assert_close(after_BMJD, pose_BMJD[:, :, parent_J])
    torch.testing.assert_close(after_BMJ, act_BMJ[:, :, parent_J])


@every_impl
def test_one_iteration_is_the_mean_of_the_votes_of_those_present(impl: str) -> None:
    given = layer(WHOLE, child_types=2, parent_types=3)
    routed = route(impl, given, 1)
    votes_BLJD, present_BL = given.votes.form_local()[:, 0], given.votes.local_activation()[:, 0]
    mean_BJD = (
        torch.einsum("bl,bljd->bjd", present_BL, votes_BLJD) / present_BL.sum(dim=1)[:, None, None]
    )
    torch.testing.assert_close(routed.pose_BJD, mean_BJD, rtol=0, atol=1e-6)  # 1e-7 of mass


@every_impl
@pytest.mark.parametrize("num_iters", [2, 3, 5])
def test_parents_that_explain_alike_keep_the_couplings_of_one_iteration(
    impl: str, num_iters: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    alike_BIJD = torch.randn(1, 9, 1, 4, generator=generator, dtype=torch.float64).expand(
        1, 9, 3, 4
    )
    routed, once = (dense(impl, voted(alike_BIJD), t) for t in (num_iters, 1))
    for coupling_BMLJ in traced(routed, "coupling"):
        torch.testing.assert_close(coupling_BMLJ, torch.full_like(coupling_BMLJ, 1 / 3))
    torch.testing.assert_close(routed.pose_BJD, once.pose_BJD)


@every_impl
@iterations
@strides
@pytest.mark.parametrize("activation", ["cost", "mixing"])
def test_votes_and_their_negatives_give_the_same_activations_unless_coordinates_are_added(
    impl: str, grid: Grid, num_iters: int, activation: str
) -> None:
    procedure = Procedure(1.0, activation=activation)
    for with_offset in (False, True):
        given = layer(grid, child_types=2, parent_types=3, with_offset=with_offset)
        negative = given._replace(pose_BNIRS=-given.pose_BNIRS)
        one, other = (route(impl, x, num_iters, procedure) for x in (given, negative))
        # The first mixing proportions do not look at votes.
        blind = activation == "mixing" and num_iters == 1
        assert torch.equal(one.act_BJ, other.act_BJ) is (blind or not with_offset)
        assert torch.equal(one.pose_BJD, -other.pose_BJD) is not with_offset

"""Dynamic routing against procedure 1, written out: every option. Other implementations than the
reference are held to it by test_parity.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from procedure_1 import AWKWARD, Layer, Size, assert_equal, layer, procedure_1

from capsweep.model.routing import LayerSizes
from capsweep.model.routing.dynamic import IMPLS, DynamicRouting, reference


class Options(NamedTuple):
    """What of a layer is used, beside its votes."""

    bias: bool
    prior: bool
    none_of_the_above: bool

    def arguments(self, chosen: Layer) -> dict[str, Any]:
        """Of an implementation."""
        return {
            "bias_JD": chosen.bias_JD if self.bias else None,
            "prior_LJ": chosen.prior_IJ if self.prior else None,
            "none_of_the_above": self.none_of_the_above,
        }


COMBINATIONS = [Options(*chosen) for chosen in itertools.product([False, True], repeat=3)]
every_combination = pytest.mark.parametrize("options", COMBINATIONS, ids=str)


@every_combination
@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("size", AWKWARD)
def test_every_iteration_is_that_of_procedure_1(
    options: Options, num_iters: int, size: Size
) -> None:
    chosen = layer(size)
    routed = reference(chosen.votes, num_iters, with_trace=True, **options.arguments(chosen))
    bias_JD = chosen.bias_JD.numpy() if options.bias else np.zeros(chosen.bias_JD.shape)
    prior_IJ = chosen.prior_IJ.numpy() if options.prior else None
    weight_IJDP = chosen.weight_IJDP.numpy()
    assert routed.trace is not None
    for item, pose_IP in enumerate(chosen.pose_BIP.numpy()):
        expected = procedure_1(
            pose_IP, weight_IJDP, bias_JD, num_iters, prior_IJ, options.none_of_the_above
        )
        for step, iteration in zip(routed.trace, expected, strict=True):
            assert_equal(step["coupling"][item, 0], iteration.coupling_IJ)
            assert_equal(step["pose"][item, 0], iteration.pose_JD)
            assert_equal(step["agreement"][item, 0], iteration.agreement_IJ)
            assert_equal(1 - step["coupling"][item, 0].sum(dim=1), iteration.none_I)
        assert_equal(routed.pose_BJD[item], expected[-1].pose_JD)
        assert_equal(routed.coupling_BIJ[item], expected[-1].coupling_IJ)
        assert_equal(routed.act_BJ[item], np.linalg.norm(expected[-1].pose_JD, axis=-1))


@every_combination
@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_the_last_gradient_is_that_of_one_iteration_with_agreements_that_have_no_past(
    num_iters: int, options: Options
) -> None:
    chosen = Layer(*[x.requires_grad_() for x in layer((2, 4, 3, 2, 3))])
    arguments = options.arguments(chosen)
    routed = reference(chosen.votes, num_iters, gradient="last", with_trace=True, **arguments)
    assert routed.trace is not None
    # One iteration whose prior is what the iterations before have added up to.
    agreements = [step["agreement"][:, 0] for step in routed.trace[:-1]]
    past_BIJ = torch.stack([torch.zeros(2, 4, 3), *agreements]).sum(dim=0).detach()
    poses = []
    for item in range(2):
        prior_IJ = chosen.prior_IJ if options.prior else torch.zeros(4, 3)
        alone = chosen._replace(pose_BIP=chosen.pose_BIP[item : item + 1])
        once = arguments | {"prior_LJ": prior_IJ + past_BIJ[item]}
        poses.append(reference(alone.votes, 1, **once).pose_BJD)
    pair = routed.pose_BJD, torch.cat(poses)
    torch.testing.assert_close(*pair)
    weight_BJD = torch.linspace(-1, 2, pair[0].numel()).view_as(pair[0])
    one, other = (
        torch.autograd.grad((x * weight_BJD).sum(), chosen, materialize_grads=True) for x in pair
    )
    torch.testing.assert_close(one, other)


def _module(**changed: object) -> DynamicRouting:
    arguments = {"num_iters": 2, "bias": True, "impl": "fast", **changed}
    return DynamicRouting(**arguments, sizes=LayerSizes(5, 3, 4, 2)).double()


@pytest.mark.parametrize("gradient", ["full", "last"])
def test_the_layer_routes_with_its_own_parameters_and_options(gradient: str) -> None:
    chosen = Layer(*[x.requires_grad_() for x in layer((2, 5, 3, 4, 2))])
    module = _module(learned_prior=True, none_of_the_above=True, gradient=gradient)
    assert not module.prior_IJ.any()  # at first
    with torch.no_grad():
        module.prior_IJ.copy_(chosen.prior_IJ)
        module.bias_JD.copy_(chosen.bias_JD)
    arguments = Options(True, True, True).arguments(chosen) | {"gradient": gradient}
    poses = [IMPLS["fast"](chosen.votes, 2, **arguments).pose_BJD, module(chosen.votes).pose_BJD]
    assert torch.equal(*poses)
    gradients = [torch.autograd.grad(pose.sum(), chosen.weight_IJDP)[0] for pose in poses]
    assert torch.equal(*gradients)


def test_a_trace_is_kept_on_request_and_is_that_of_the_reference() -> None:
    chosen, module = layer((2, 5, 3, 4, 2)), _module(none_of_the_above=True)
    assert module(chosen.votes).trace is None
    routed = module(chosen.votes, with_trace=True)
    first_BMIJ = routed.trace[0]["coupling"]
    torch.testing.assert_close(first_BMIJ, torch.full_like(first_BMIJ, 1 / 4))  # three, and none
    torch.testing.assert_close(routed.pose_BJD, module(chosen.votes).pose_BJD)

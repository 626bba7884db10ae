"""Self-routing against its equations.

Shape letters: B batch, I L children, J parents, P child pose, D parent pose.
"""

import pytest
import routing_oracles as oracles
from routing_oracles import Image, RoutedImage, Shape
from routing_variants import assert_same, normal
from torch import Tensor

from capsweep.model.routing import self_routing
from capsweep.model.routing.self_routing import SelfRouting, reference
from capsweep.model.votes import Votes

SIZE = 2, 7, 3, 4, 5


def gate(image: Image, gate_LJP: Tensor, bias_LJ: Tensor) -> RoutedImage:
    logit = {}
    for link in image.vote:
        place = link.local, link.parent[1]
        logit[link] = (gate_LJP[place] * image.pose[link.child]).sum() + bias_LJ[place]
    coupling = oracles.divide(logit, "types")
    weight = {link: image.activation[link.child] * c for link, c in coupling.items()}
    mass, total = (
        oracles.add_up(weight),
        oracles.add_up({link: image.activation[link.child] for link in weight}),
    )
    pose = {parent: s / mass[parent] for parent, s in oracles.add_votes(image, weight).items()}
    return RoutedImage(coupling, pose, {parent: mass[parent] / total[parent] for parent in mass})


@oracles.every_shape
def test_parents_couplings_and_gradients_are_those_of_the_equations(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_routing, "SMALLEST_MASS", 0.0)
    votes = oracles.draw_votes(shape)
    layer = SelfRouting("reference", sizes=oracles.sizes_of(votes))
    oracles.assert_layer_follows(layer, gate, votes)


def test_a_child_without_activation_can_be_removed() -> None:
    votes, draw = oracles.draw_votes(SIZE), normal(1)
    gate_LJP, bias_LJ = draw(7, 3, 4), draw(7, 3)
    votes.activation_BI[:, 2] = 0
    kept = [0, 1, 3, 4, 5, 6]
    poses, weights = votes.pose_BIP[:, kept], votes.weight_IJDP[kept]
    fewer = Votes(poses, weights, votes.activation_BI[:, kept])
    one = reference(votes, gate_LJP, bias_LJ)
    other = reference(fewer, gate_LJP[kept], bias_LJ[kept])
    assert_same(one.pose_BJD, other.pose_BJD)
    assert_same(one.act_BJ, other.act_BJ)

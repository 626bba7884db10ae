"""Tests of the special properties of this variant; test_properties.py tests the common ones."""

import pytest
import torch

from capsweep.model.routing.mine import reference
from capsweep.model.votes import Votes


@pytest.mark.parametrize("length", [0.1, 10.0])
def test_children_that_agree_give_more_however_long_their_votes_are(length: float) -> None:
    """Check that children whose votes agree get larger couplings, for short and long votes."""
    # Two of three children cast the same vote for the first parent; for the second, all differ.
    weight_IJD = torch.tensor(
        [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [-0.5, 0.9]], [[-1.0, 0.0], [-0.5, -0.9]]]
    )
    votes = Votes(torch.full((1, 3, 1), length), weight_IJD[..., None])
    trace = reference(votes, 2, gain_J=torch.ones(2), with_trace=True).trace
    assert trace is not None
    first_IJ, second_IJ = (step["coupling"][0, 0] for step in trace)
    torch.testing.assert_close(first_IJ, torch.full((3, 2), 0.5))
    assert second_IJ[0, 0] > second_IJ[2, 0]
    assert trace[0]["agreement"][0, 0, 0, 0].item() == pytest.approx(1.0)

"""Votes against explicit loops, and shares of a child at extremes: the oracles of `em` and
`dynamic` have all rules link by link.

Shape letters as in capsweep.model.votes.
"""

import numpy as np
import pytest
import torch
from convolutions import draw_normal

from capsweep.model import convolution
from capsweep.model.routing import ReceptiveFields, coupling_softmax
from capsweep.model.votes import ConvolutionalVotes

# Children on a 3x3 grid, counted row by row; a 2x2 kernel with stride 1 has four parent positions.
STRIDE_1 = [[0, 1, 3, 4], [1, 2, 4, 5], [3, 4, 6, 7], [4, 5, 7, 8]]
# Children on a 5x5 grid; a 3x3 kernel with stride 2. Neighbouring parents share a row or column.
STRIDE_2 = [
    [0, 1, 2, 5, 6, 7, 10, 11, 12],
    [2, 3, 4, 7, 8, 9, 12, 13, 14],
    [10, 11, 12, 15, 16, 17, 20, 21, 22],
    [12, 13, 14, 17, 18, 19, 22, 23, 24],
]


@pytest.mark.parametrize("is_class_layer", [False, True], ids=["own", "shared-and-coordinates"])
@pytest.mark.parametrize(
    ("child_MK", "positions"), [(STRIDE_1, 9), (STRIDE_2, 25)], ids=["stride-1", "stride-2"]
)
def test_convolutional_votes_are_pose_matrix_times_weight_matrix(
    child_MK: list[list[int]], positions: int, is_class_layer: bool
) -> None:
    batch, child_types, parent_types = 2, 2, 3
    pose_BNI44 = draw_normal(batch, positions, child_types, 4, 4)
    offsets = 1 if is_class_layer else len(child_MK[0])  # shared weights
    weight_KIJ44 = draw_normal(offsets, child_types, parent_types, 4, 4)
    offset_K44 = draw_normal(len(child_MK[0]), 4, 4) if is_class_layer else None
    votes = ConvolutionalVotes(
        pose_BNI44,
        torch.ones(batch, positions, child_types, dtype=torch.float64),
        weight_KIJ44,
        torch.tensor(child_MK),
        None if offset_K44 is None else offset_K44.flatten(1),
    )
    pose, weight = pose_BNI44.numpy(), weight_KIJ44.numpy()
    shape = (batch, len(child_MK), len(child_MK[0]), child_types, parent_types)
    expected = np.zeros((*shape, 4, 4))
    for b, m, k, i, j in np.ndindex(shape):
        child = pose[b, child_MK[m][k], i]
        for row, column, inner in np.ndindex(4, 4, 4):
            product = child[row, inner] * weight[k % offsets, i, j, inner, column]
            expected[b, m, k, i, j, row, column] += product
        if offset_K44 is not None:
            expected[b, m, k, i, j] += offset_K44[k].numpy()
    expected_BMLJD = expected.reshape(batch, len(child_MK), -1, parent_types, 16)
    np.testing.assert_allclose(votes.form_local().numpy(), expected_BMLJD, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["all", "types", "positions"])
@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6])
def test_logits_of_any_size_give_finite_shares_and_gradients(norm: str, scale: float) -> None:
    grid = convolution.PositionGrid(5, 6)  # whose last column has no parent
    fields = ReceptiveFields(torch.tensor(convolution.list_fields(grid, 3, stride=2)), 30)
    drawn_BMLJ = torch.randn(2, 4, 18, 3, generator=torch.Generator().manual_seed(4))
    logit_BMLJ = (scale * drawn_BMLJ).requires_grad_()
    share_BMLJ = coupling_softmax(logit_BMLJ, fields, norm)
    share_BMLJ.square().sum().backward()
    assert logit_BMLJ.grad is not None
    assert share_BMLJ.isfinite().all()
    assert logit_BMLJ.grad.isfinite().all()

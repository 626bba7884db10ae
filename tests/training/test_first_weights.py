"""A cell of yesterday starts with the weights of yesterday: its signature promises its numbers."""

import pytest

from capsweep.config import compose
from capsweep.training.build import make_task

# The first, the middle and the last number of each parameter, and the sum of all sizes, at commit
# edee61c: before there were options of initial weights, padding and routing.
WEIGHTS = {
    "experiment=digits": {
        "conv.weight": (-0.016899152, -0.07650274, 0.012887288, 651.51673),
        "conv.bias": (0, 0, 0, 0),
        "primary.conv.weight": (-0.0048635351, 0.010155668, 0.0083416151, 3678.2981),
        "primary.conv.bias": (0, 0, 0, 0),
        "classes.weight_IJDP": (0.016482312, 0.13452244, 0.054734133, 21685.084),
        "classes.routing.bias_JD": (0.1, 0.1, 0.1, 16),
        "decoder.layers.0.weight": (-0.064313732, -0.070581496, 0.063345879, 811.0318),
        "decoder.layers.0.bias": (-0.05937152, -0.058852259, 0.035014126, 4.7300262),
        "decoder.layers.2.weight": (0.048113536, 0.029112272, 0.044124398, 1446.7426),
        "decoder.layers.2.bias": (-0.031464256, -0.0011839998, -0.076171428, 10.690662),
        "decoder.layers.4.weight": (-0.0012026355, -0.047608122, -0.0054219365, 6268.3208),
        "decoder.layers.4.bias": (0.0062336177, -0.0090348497, 0.022737533, 24.078674),
    },
    "experiment=digits model=cnn_small": {
        "features.0.weight": (0.17810209, 0.049506664, 0.032623172, 79.133124),
        "features.0.bias": (-0.14570427, 0.12189696, 0.19033873, 3.3235965),
        "features.3.weight": (-0.0098749483, 0.011732212, 0.032802016, 852.46674),
        "features.3.bias": (0.02119909, -0.010320436, 0.0016604679, 1.00578),
        "features.6.weight": (0.013919605, -0.0043160412, -0.0090981238, 1157.9172),
        "features.6.bias": (0.021182055, 0.016517483, -0.013026402, 0.72574243),
        "classifier.0.weight": (-0.0086025493, -0.015560474, 0.010464991, 3469.4152),
        "classifier.0.bias": (-0.01278844, -0.011390835, -0.0024882248, 1.2262444),
        "classifier.3.weight": (-0.036388189, -0.05247489, 0.077034704, 56.312345),
        "classifier.3.bias": (-0.059436064, 0.031850982, 0.0019569518, 0.31705803),
    },
}


@pytest.mark.parametrize("line", WEIGHTS)
def test_the_first_weights_of_a_cell_never_change(line: str) -> None:
    found = dict(make_task(compose.cell(line.split())).network.named_parameters())
    assert set(found) == set(WEIGHTS[line])
    for name, (first, middle, last, total) in WEIGHTS[line].items():
        flat = found[name].detach().flatten()
        some = [flat[place].item() for place in (0, flat.numel() // 2, -1)]
        # Bit for bit on one machine; another's logarithms may round the last bit otherwise.
        assert some == pytest.approx([first, middle, last], rel=1e-5), name
        assert flat.double().abs().sum().item() == pytest.approx(total, rel=1e-5), name

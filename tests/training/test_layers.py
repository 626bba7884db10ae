"""What a network costs, layer by layer."""

import pytest

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.training.size import measure_layers, measure_size


def test_the_full_capsnet_on_mnist_has_the_papers_numbers() -> None:
    config = compose.cell(["model=capsnet", "dataset=mnist"]).config
    layer = {one.name: one for one in measure_layers(config)}
    assert sum(one.parameters for one in layer.values()) == 8_215_728
    assert layer["conv"].output_shape == (256, 20, 20)
    assert layer["conv"].flops == 2 * 256 * 81 * 20 * 20
    assert layer["primary"].output_shape == (1152, 8)
    assert layer["primary.conv"].parameters == 256 * 256 * 81 + 256
    assert layer["classes"].output_shape == (10, 16)
    assert layer["classes"].parameters == 1152 * 10 * 16 * 8
    assert layer["classes"].votes == 11_520  # 1,152 children, 10 parents
    assert sum(one.votes for one in layer.values()) == 11_520
    assert layer["classes.routing"].parameters == 160
    assert layer["decoder.layers.4"].output_shape == (784,)
    assert not {"", "decoder.layers"} & layer.keys()  # lists of layers are left out


@pytest.mark.parametrize(
    "target",
    ["capsweep.data.cifar10.tarfile.open", "torch.nn.functional.warnings.warn", "torch.optim.no"],
)
def test_a_path_that_leads_out_of_the_allowed_libraries_is_refused_by_name(
    target: str,
) -> None:
    config = compose.cell([f"optim.optimizer._target_={target}"]).config
    with pytest.raises(ConfigError, match=r"optim\.optimizer\._target_: "):
        measure_size(config)

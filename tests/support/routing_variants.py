"""Every routing variant, found in its folder, as the module that a layer of a network has.

Shape letters: J parents.
"""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from capsweep.config import compose

CONF = Path(__file__).parents[2] / "conf"


def _variants() -> dict[str, ModuleType]:
    """Stem to module, of every file in conf/routing."""
    stems = sorted(path.stem for path in (CONF / "routing").glob("*.yaml"))
    return {stem: importlib.import_module(f"capsweep.model.routing.{stem}") for stem in stems}


def anywhere(impls: Iterable[str]) -> list[str]:
    """Those that route on any machine: kernels have tests of their own."""
    return [impl for impl in impls if impl != "triton"]


VARIANTS = _variants()


def normal(seed: int, dtype: torch.dtype = torch.float64) -> Callable[..., Tensor]:
    """What draws standard normal numbers of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=dtype)


class Variant(NamedTuple):
    """A variant, and one of its implementations."""

    stem: str
    impl: str

    def __str__(self) -> str:
        """As in the ids of tests."""
        return f"{self.stem}-{self.impl}"

    def layer(
        self, num_iters: int, children: int, parents: int, parent_pose: int, seed: int = 0
    ) -> nn.Module:
        """The routing of one layer in float64, as its file in conf/ makes it, but for iterations
        and implementation. Its parameters are moved a little, each by its own amount.
        """
        section = dict(compose.cell([f"routing={self.stem}"]).config["routing"])
        del section["name"]
        make = instantiate(section | {"num_iters": num_iters, "impl": self.impl}, _convert_="all")
        made = make(num_children=children, num_parents=parents, parent_pose=parent_pose).double()
        draw = normal(seed)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(draw(*parameter.shape), alpha=0.1)
        return made


every_variant = pytest.mark.parametrize("stem", VARIANTS)
IMPLEMENTATIONS = [
    Variant(stem, name) for stem, module in VARIANTS.items() for name in anywhere(module.IMPLS)
]
every_impl = pytest.mark.parametrize("variant", IMPLEMENTATIONS, ids=map(str, IMPLEMENTATIONS))
# Those that say by `coupling_rule` among whom a child divides itself.
DIVIDING = [x for x in IMPLEMENTATIONS if hasattr(x.layer(1, 1, 1, 1), "coupling_rule")]
every_dividing_impl = pytest.mark.parametrize("variant", DIVIDING, ids=map(str, DIVIDING))
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])


def assert_same(one: Tensor, other: Tensor) -> None:
    """Equal but for rounding in float64."""
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)

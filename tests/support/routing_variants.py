"""Every routing variant, found in its folder, and the toys, as the module that a layer of a network
has.

Shape letters: J parents.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from capsweep.config import compose
from capsweep.model.routing import CouplingRule, LayerSizes
from capsweep.model.votes import ConvolutionalVotes, LocalVotes, Votes

CONF = Path(__file__).parents[2] / "conf"


def _variants() -> dict[str, ModuleType]:
    """Stem to module, of every file in conf/routing."""
    stems = sorted(path.stem for path in (CONF / "routing").glob("*.yaml"))
    targets = {
        stem: compose.cell([f"routing={stem}"]).config["routing"]["_target_"] for stem in stems
    }
    modules = {stem: target.rpartition(".")[0] for stem, target in targets.items()}
    return {stem: importlib.import_module(module) for stem, module in modules.items()}


def anywhere(impls: Iterable[str]) -> list[str]:
    """Those that route on any machine: kernels have tests of their own."""
    return [impl for impl in impls if impl != "triton"]


VARIANTS = _variants()


def normal(seed: int, dtype: torch.dtype = torch.float64) -> Callable[..., Tensor]:
    """What draws standard normal numbers of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=dtype)


class Variant(NamedTuple):
    """A variant, and one of its implementations; its section, as in conf/routing."""

    stem: str
    impl: str
    section: Mapping[str, Any]

    def __str__(self) -> str:
        """As in the ids of tests."""
        return f"{self.stem}-{self.impl}"

    def layer(self, num_iters: int, sizes: LayerSizes, seed: int = 0) -> nn.Module:
        """The routing of one layer in float64, as its section makes it, but for iterations, where
        it has them, and implementation; for evaluation, where none draws anything. Its parameters
        are moved a little, each by its own amount.
        """
        chosen = {"num_iters": num_iters, "impl": self.impl}
        section = {key: chosen.get(key, value) for key, value in self.section.items()}
        make = instantiate(section, _convert_="all")
        made = make(sizes=sizes).double().eval()
        draw = normal(seed)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(draw(*parameter.shape), alpha=0.1)
        return made

    def routes(self, kind: type[LocalVotes]) -> bool:
        """Whether it takes votes of a kind: of all, or of the one that `votes_kind` says."""
        only = getattr(self.layer(1, LayerSizes(1, 1, 1, 1)), "votes_kind", None)
        return only in (None, kind)

    @property
    def coupling_rule(self) -> CouplingRule | None:
        """Among whom a child divides itself, so that its shares sum to 1; None: they do not."""
        rule = getattr(self.layer(1, LayerSizes(1, 1, 1, 1)), "coupling_rule", None)
        return None if rule is None or rule.none_of_the_above else rule


def _variants_of(stem: str, impls: Iterable[str]) -> list[Variant]:
    config = compose.cell([f"routing={stem}"]).config["routing"]
    section = {key: value for key, value in config.items() if key != "name"}
    return [Variant(stem, impl, section) for impl in anywhere(impls)]


def _toy(name: str, **parameters: Any) -> Variant:
    target = f"toy_routings.{name.capitalize()}Routing"
    return Variant(f"toy-{name}", "only", {"_target_": target, "_partial_": True, **parameters})


TOYS = [_toy("uniform"), _toy("sigmoid", num_iters=2), _toy("attention")]
IMPLEMENTATIONS = [
    *(variant for stem, module in VARIANTS.items() for variant in _variants_of(stem, module.IMPLS)),
    *TOYS,
]


def parametrize(variants: Iterable[Variant]) -> pytest.MarkDecorator:
    """A test for each of them, with the variant's name in its id."""
    listed = list(variants)
    return pytest.mark.parametrize("variant", listed, ids=map(str, listed))


CONVOLVING = [variant for variant in IMPLEMENTATIONS if variant.routes(ConvolutionalVotes)]
every_variant = pytest.mark.parametrize("stem", VARIANTS)
every_impl = parametrize(IMPLEMENTATIONS)
every_convolving_impl = parametrize(CONVOLVING)
every_impl_of_both_kinds = parametrize(each for each in CONVOLVING if each.routes(Votes))
every_dividing_impl = parametrize(each for each in IMPLEMENTATIONS if each.coupling_rule)
every_convolving_and_dividing_impl = parametrize(
    each for each in CONVOLVING if each.coupling_rule == CouplingRule()
)
iterations = pytest.mark.parametrize("num_iters", [1, 2, 3])


def move_links(module: nn.Module, letters: str, order: Tensor) -> None:
    """Put what a layer owns of each child (letters IL) or parent (J) in another order, by the
    letters that end the names of its tensors.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    with torch.no_grad():
        for name, tensor in named:
            for axis, letter in enumerate(name.rpartition("_")[2]):
                if letter in letters:
                    tensor.copy_(tensor.index_select(axis, order))


def assert_same(one: Tensor, other: Tensor) -> None:
    """Equal but for rounding in float64."""
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)

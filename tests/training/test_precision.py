"""`precision`: tf32, products of float32 as tensor cores round them, in cells that ask for it; and
bf16-mixed, products in bfloat16, but capsules, routing and losses in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_cells import finish, read_provenance, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.errors import ConfigError
from capsweep.model.capsnet import ClassCapsules
from capsweep.model.capsules import PrimaryCapsules
from capsweep.model.matrix_capsnet import MatrixCapsules, MatrixPrimary
from capsweep.model.routing.vote_products import VoteMoments, VoteProducts, apply_to_votes
from capsweep.training import build, devices
from capsweep.training.build import make_task

HERE = {"32": False, "tf32": True, "bf16-mixed": False}


def read_flags() -> tuple[bool, bool]:
    """Of products of matrices, and of convolutions."""
    return bool(torch.backends.cuda.matmul.allow_tf32), torch.backends.cudnn.allow_tf32


@pytest.fixture(autouse=True)
def flags_kept() -> Iterator[None]:
    """As they were, after each test."""
    matrices, convolutions = read_flags()
    yield
    torch.backends.cuda.matmul.allow_tf32 = matrices
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if every device had TF32, until it is undone."""
    monkeypatch.setattr(devices, "has_tf32", lambda _: True)
    return monkeypatch


def was_rounded(cell: Cell) -> bool:
    return read_provenance(cell)["implementations"]["tf32"]


def test_each_cell_of_a_process_sets_it_anew(
    rounding: pytest.MonkeyPatch, small_cell: Callable[..., Cell]
) -> None:
    for precision in ("tf32", "32", "tf32", "bf16-mixed"):
        make_task(small_cell(f"precision={precision}"))
        assert read_flags() == (HERE[precision],) * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("override", "why", "cure"),
    [
        (
            "precision=tf32",
            "precision=tf32 needs an NVIDIA GPU of compute capability 8.0 or more, and this cell",
            "has none; set precision=32 or precision=bf16-mixed",
        ),
        (
            "trainer.accelerator=gpu",
            "trainer.accelerator=gpu: this process sees no GPU; set resources.gpu=1 on a node that",
            "has one, or trainer.accelerator=auto",
        ),
    ],
)
def test_without_such_a_gpu_a_cell_is_refused_before_data_is_looked_for(
    override: str, why: str, cure: str, small_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = small_cell(override, "dataset=svhn", f"places.data={tmp_path / 'nowhere'}")
    with pytest.raises(ConfigError) as refusal:
        train(cell)
    assert str(refusal.value) == f"{why} {cure}"


def test_its_evaluation_elsewhere_is_in_float32_and_says_so(
    small_cell: Callable[..., Cell],
    rounding: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounded, exact = (
        small_cell("epochs=1", "limit_batches=1", f"precision={name}") for name in ("tf32", "32")
    )
    for cell in (rounded, exact):
        train(cell)
        assert was_rounded(cell) == (cell is rounded)
    rounding.undo()
    capsys.readouterr()
    loader = finish(rounded)
    first, second = (loader.load(c.signature) for c in (rounded, exact))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"{rounded.signature}: trained with precision=tf32, evaluated in float32 on cpu"
    )
    assert first.verify().ties == 0
    for cell, is_rounded in ((first, True), (second, False), (first, True)):  # in turns
        cell.predict_scores(1)
        assert read_flags() == (is_rounded,) * 2


def test_products_whose_differences_count_are_never_rounded() -> None:
    allowed = []

    class NotedProducts(VoteProducts):
        """Notes what is allowed, forwards and backwards."""

        def sum_votes(self, share_BMJL: Tensor) -> Tensor:
            allowed.append(read_flags()[0])
            return super().sum_votes(share_BMJL)

        def differentiate_votes(self, by_products: Sequence[Tensor | None]) -> Tensor | None:
            allowed.append(read_flags()[0])
            return super().differentiate_votes(by_products)

    def body(products: VoteProducts) -> list[Tensor]:
        return [products.sum_votes(torch.ones(2, 1, 3, 5))]

    devices.allow_tf32(True)
    (sums,) = apply_to_votes(NotedProducts, body, torch.rand(2, 1, 3, 4, 5, requires_grad=True))
    assert read_flags() == (True, True)
    sums.sum().backward()
    assert read_flags() == (True, True)
    with torch.no_grad():
        apply_to_votes(NotedProducts, body, torch.rand(2, 1, 3, 4, 5))
    assert allowed == [False] * 3


@pytest.mark.gpu
def test_on_a_gpu_gaussians_of_votes_that_agree_are_as_exact_with_tf32_as_without() -> None:
    noise = torch.Generator("cuda").manual_seed(0)
    votes_BMJDL = 10 * torch.randn(2, 1, 3, 16, 200, generator=noise, device="cuda")
    votes_BMJDL[..., :40] = 1 + votes_BMJDL[..., :40] / 1000
    share_BMJL = torch.zeros(2, 1, 3, 200, device="cuda")
    share_BMJL[..., :40] = 1 / 40

    def body(moments: VoteMoments) -> list[Tensor]:
        mean_BMJD, variance_BMJD = moments.fit_gaussians(share_BMJL, floor=5e-4)
        return [variance_BMJD, moments.compute_distances(mean_BMJD, variance_BMJD)]

    exact_BMJD = votes_BMJDL[..., :40].double().var(dim=4, correction=0) + 5e-4
    results = []
    for is_allowed in (False, True):
        devices.allow_tf32(is_allowed)
        results.append(apply_to_votes(VoteMoments, body, votes_BMJDL.requires_grad_()))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(results[1][0].double(), exact_BMJD, rtol=0.05, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", HERE)
def test_on_a_gpu_products_are_rounded_where_the_cell_asks_for_it_alone(
    precision: str, small_cell: Callable[..., Cell]
) -> None:
    make_task(small_cell(f"precision={precision}", "trainer.accelerator=gpu"))
    noise = torch.Generator("cuda").manual_seed(0)
    one, other = (torch.randn(512, 512, generator=noise, device="cuda") for _ in range(2))
    images, weight = one.view(4, 64, 32, 32), other.view(-1)[: 64 * 64 * 9].view(64, 64, 3, 3)
    for name, product, factors in (
        ("matrices", torch.matmul, (one, other)),
        ("convolution", torch.conv2d, (images, weight)),
    ):
        exact = product(*(factor.double() for factor in factors))
        error = float((product(*factors) - exact).abs().max() / exact.abs().max())
        low, high = (5e-5, 1e-2) if HERE[precision] else (0, 2e-5)
        assert low <= error < high, name


@pytest.mark.gpu
def test_on_a_gpu_such_a_cell_trains_and_says_again_what_it_said(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("precision=tf32", "trainer.accelerator=gpu")
    assert finish(cell, "cuda").load(cell.signature).verify().ties <= 1
    assert was_rounded(cell)


MATRIX = ["model=matrix_capsnet_tiny", "loss=spread"]
NETWORKS = {
    "capsnet": ["model=capsnet", "model.conv.channels=8", "model.primary.types=2"],
    "capsnet_small": ["model=capsnet_small"],
    "cnn_small": ["model=cnn_small"],
    "matrix, dynamic": [*MATRIX, "routing=dynamic"],
    "matrix, em": [*MATRIX, "routing=em"],
}
CAPSULES = (PrimaryCapsules, ClassCapsules, MatrixPrimary, MatrixCapsules)


@pytest.mark.parametrize("overrides", NETWORKS.values(), ids=NETWORKS)
def test_convolutions_are_bfloat16_and_capsules_and_losses_float32(overrides: list[str]) -> None:
    config = compose.cell([*overrides, "precision=bf16-mixed"]).config
    torch.manual_seed(0)
    network, kinds = build.build_network(config), {}
    for name, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, *CAPSULES)):

            def note(module: nn.Module, _: Any, output: Any, name: str = name) -> None:
                outputs = [output] if isinstance(output, Tensor) else output
                tensors = [value for value in outputs if isinstance(value, Tensor)]
                kinds[name, type(module)] = {tensor.dtype for tensor in tensors}

            module.register_forward_hook(note)
    batch = Batch(torch.rand(2, *config["dataset"]["image_shape"]), torch.arange(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = build.build_objective(config)(network, batch)
    losses.total.backward()
    assert losses.total.dtype == losses.scores_BN.dtype == torch.float32
    assert kinds
    for (name, kind), found in kinds.items():
        expected = torch.float32 if kind in CAPSULES else torch.bfloat16
        assert found == {expected}, name
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
        assert parameter.dtype == torch.float32

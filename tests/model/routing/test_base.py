"""What networks ask of any routing variant."""

from functools import partial

import pytest
from torch import nn

from capsweep.model.routing.base import choose_impl, count_equal_shares
from capsweep.model.routing.dynamic import DynamicRouting


class Unequal(nn.Module):
    """A variant whose children do not divide themselves at first."""

    def __init__(self, *, num_children: int, num_parents: int, parent_pose: int) -> None:
        super().__init__()


@pytest.mark.parametrize(("none_of_the_above", "slots"), [(False, 32), (True, 33)])
def test_shares_are_the_slots_of_the_first_softmax(none_of_the_above: bool, slots: int) -> None:
    routing = partial(
        DynamicRouting, 3, bias=True, impl="reference", none_of_the_above=none_of_the_above
    )
    assert count_equal_shares(routing, 32) == slots


def test_a_variant_without_equal_shares_cannot_divide_primary_votes() -> None:
    with pytest.raises(
        ValueError, match=r"model\.primary\.divided=true needs .* set model\.primary\.divided=false"
    ):
        count_equal_shares(Unequal, 32)


def test_an_implementation_is_chosen_by_name_or_refused() -> None:
    def fast(*_: object) -> None: ...

    impls = {"reference": len, "fast": fast}
    assert choose_impl(impls, "fast") is fast  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"routing\.impl must be one of reference, fast, got slow"):
        choose_impl(impls, "slow")  # pyright: ignore[reportArgumentType]

"""The benchmark of shards: what it measures holds what is composed on the fly."""

import pytest

from capsweep.bench import shards
from capsweep.bench.candidates import ParityError


def test_nothing_is_measured_where_a_shard_holds_something_else() -> None:
    shards.check_parity()
    with pytest.raises(ParityError, match="labels of a shard"):
        shards.check_parity(lambda stored: stored["labels"].add_(1))


@pytest.mark.slow
def test_every_rate_is_measured() -> None:
    report = shards.measure_shards(budget=0.1, examples=2000)
    assert all(measured.value for measured in report.measured)
    assert len(report.measured) == 5

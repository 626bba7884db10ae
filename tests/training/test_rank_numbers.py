"""Which of several processes writes a cell is said by who starts them, and by nobody else."""

import pytest

from capsweep.training.ddp_worker import _WorkerEnvironment


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_scheduler_says_of_its_nodes_does_not_move_the_ranks_of_a_cell(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NODE_RANK", "GROUP_RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "3")
    found = _WorkerEnvironment(rank)
    # Lightning makes the global rank of these two, and the first of all writes.
    assert (found.node_rank(), found.local_rank()) == (0, rank)

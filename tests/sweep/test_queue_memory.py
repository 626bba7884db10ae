"""Nodes without memory: Ray ends the newest worker there, whoever took the memory."""

from job_queues import NODE_MEMORY, Make, lose

from capsweep.sweep.placement import Capacity


def test_a_cell_of_a_whole_device_goes_on_as_long_as_it_gets_on(make: Make) -> None:
    queue, heard = make(["seed=0", "resources.gpu=1", "epochs=100"])
    queue.opens(Capacity(cpu=16, gpu=1))
    for epoch in range(0, 50, 5):
        lose(queue, NODE_MEMORY, epoch)
    assert heard.ends == {}
    assert all("goes on from its last checkpoint" in said for said in heard.words)
    for _ in range(3):
        lose(queue, NODE_MEMORY)
    (outcome,) = heard.ends.values()
    assert "ran out of memory; 13 workers were lost, the last 3" in (outcome.cause or "")


def test_a_cell_of_a_part_of_a_device_has_fewer_beside_it(make: Make) -> None:
    queue, heard = make(["seed=0", "resources.gpu=0.25"])
    queue.opens(Capacity(cpu=16, gpu=1))
    assert [lose(queue, NODE_MEMORY).gpu for _ in range(3)] == [0.25, 0.5, 0.5]
    assert heard.ends == {}

"""The cluster's nodes are told; how they come and leave: test_autoscaling.py, test_node_losses.py."""

import time

from curation.cluster import membership, nodes


def test_the_nodes_are_told_at_the_start_and_again_now_and_then(local_ray, monkeypatch):
    monkeypatch.setattr(membership, "AGAIN_SECONDS", 0.1)
    told = []
    with membership.follow(lambda **event: told.append(tuple(event.values())), seconds=0.02):
        assert told == [(1, [nodes.name(nodes.living()[0])], [])]
        end = time.monotonic() + 30
        while len(told) < 3 and time.monotonic() < end:
            time.sleep(0.02)
    assert told[1:3] == [(1, [], []), (1, [], [])]
    number = len(told)
    time.sleep(0.3)
    assert len(told) == number

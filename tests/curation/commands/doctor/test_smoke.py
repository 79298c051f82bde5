from pathlib import Path

import pytest

from curation.cluster.nodes import NodeAnswer
from curation.commands.doctor import joined as smoke
from curation.tables import io


def answered(folder: Path, first: int, stop: int, *, has_lease: bool = False) -> NodeAnswer:
    done = smoke.write_rows(str(folder), first, stop)
    assert done.problem is None
    done = smoke.NodeLabels(written=done.written, has_lease=has_lease, problem=None)
    return NodeAnswer(node=f"10.0.0.{first} (node n{first})", node_id=f"n{first}", value=done, problem=None)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return io.create(str(tmp_path / "labels.lance"), smoke.label(0, 6).schema).uri


def test_rows_of_every_node_are_read_back_once(tmp_path: Path, uri: str):
    nodes = [answered(tmp_path, 3, 6), answered(tmp_path, 0, 3, has_lease=True)]
    verdict = smoke.judge_store(uri, nodes, smoke.label(0, 6))
    assert verdict.state == "ok" and verdict.finding.startswith("6 rows from 2 nodes, one of which got the lease")
    assert sorted(io.read(io.find_latest(uri), ["row_id"])["row_id"].to_pylist()) == list(range(6))


@pytest.mark.parametrize("leases", [0, 2])
def test_a_lease_that_no_node_or_two_nodes_get_fails(tmp_path: Path, uri: str, leases: int):
    nodes = [answered(tmp_path, first, first + 3, has_lease=first < 3 * leases) for first in (0, 3)]
    verdict = smoke.judge_store(uri, nodes, smoke.label(0, 6))
    assert verdict.state == "fail" and f"{leases} of 2 nodes got the same lease" in verdict.finding
    assert "If-Match" in verdict.fix


def test_rows_on_a_disk_of_the_nodes_own_fail(tmp_path: Path, uri: str):
    nodes = [answered(tmp_path, 0, 3, has_lease=True), answered(tmp_path, 3, 6)]
    for path in sorted((tmp_path / "labels.lance" / "data").iterdir())[:1]:
        path.unlink()
    verdict = smoke.judge_store(uri, nodes, smoke.label(0, 6))
    assert verdict.state == "fail" and "cannot be read here" in verdict.finding and "all nodes mount" in verdict.fix


def test_other_values_than_those_that_were_labelled_fail(tmp_path: Path, uri: str):
    nodes = [answered(tmp_path, 0, 6, has_lease=True)]
    expected = smoke.label(0, 6)
    place = expected.schema.get_field_index("completion")
    other = expected.set_column(place, expected.schema.field(place), [["other"] * 6])
    assert "but not the 6" in smoke.judge_store(uri, nodes, other).finding


def test_a_node_that_does_not_answer_fails(tmp_path: Path, uri: str):
    silent = NodeAnswer(node="10.0.0.9 (node n9)", node_id="n9", value=None, problem="no answer within 180 seconds")
    verdict = smoke.judge_store(uri, [silent, answered(tmp_path, 0, 3, has_lease=True)], smoke.label(0, 6))
    assert verdict.state == "fail" and "10.0.0.9" in verdict.finding and "180 seconds" in verdict.finding


def test_a_node_that_cannot_write_says_why(tmp_path: Path, uri: str):
    done = smoke.write_rows(str(tmp_path / "none"), 0, 3)  # a node that does not see the table
    answer = NodeAnswer(node="10.0.0.1 (node n1)", node_id="n1", value=done, problem=None)
    verdict = smoke.judge_store(uri, [answer], smoke.label(0, 6))
    assert done.written is None and verdict.state == "fail" and "cannot be written from 10.0.0.1" in verdict.finding
    assert "all nodes mount" in verdict.fix and "which the driver wrote, is not there" in verdict.finding
    assert not (tmp_path / "none").exists()  # nothing is left on a disk of the node's own

from pathlib import Path

import pytest

from curation.cluster.nodes import NodeAnswer
from curation.commands import doctor
from curation.tables import io


def answered(folder: Path, number: int, *, has_lease: bool = False) -> NodeAnswer:
    done = doctor.write_row(str(folder), number)
    assert done.problem is None
    done = doctor.NodeWritten(written=done.written, has_lease=has_lease, problem=None)
    return NodeAnswer(node=f"10.0.0.{number} (node n{number})", value=done, problem=None)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return io.create(str(tmp_path / "rows.lance"), doctor.ROWS).uri


def test_the_row_of_every_node_is_read_back_once(tmp_path: Path, uri: str):
    verdict = doctor.rate_store(uri, [answered(tmp_path, 1), answered(tmp_path, 0, has_lease=True)])
    assert verdict.state == "ok" and "2 nodes, one of which got the lease" in verdict.finding
    assert sorted(io.read(io.find_latest(uri), ["row_id"])["row_id"].to_pylist()) == [0, 1]


@pytest.mark.parametrize("leases", [0, 2])
def test_a_lease_that_no_node_or_two_nodes_get_fails(tmp_path: Path, uri: str, leases: int):
    verdict = doctor.rate_store(uri, [answered(tmp_path, number, has_lease=number < leases) for number in (0, 1)])
    assert verdict.state == "fail" and f"{leases} of 2 nodes got the same lease" in verdict.finding
    assert "If-Match" in verdict.fix


def test_rows_on_a_disk_of_the_nodes_own_fail(tmp_path: Path, uri: str):
    nodes = [answered(tmp_path, 0, has_lease=True), answered(tmp_path, 1)]
    for path in sorted((tmp_path / "rows.lance" / "data").iterdir())[:1]:
        path.unlink()
    verdict = doctor.rate_store(uri, nodes)
    assert verdict.state == "fail" and "cannot be read here" in verdict.finding and "all nodes mount" in verdict.fix


def test_rows_that_are_not_those_of_the_nodes_fail(tmp_path: Path, uri: str):
    assert "of 1 rows, one from each node, 1 are read" in doctor.rate_store(uri, [answered(tmp_path, 3)]).finding


def test_a_node_that_does_not_answer_fails(tmp_path: Path, uri: str):
    silent = NodeAnswer(node="10.0.0.9 (node n9)", value=None, problem="no answer within 180 seconds")
    verdict = doctor.rate_store(uri, [silent, answered(tmp_path, 0, has_lease=True)])
    assert verdict.state == "fail" and "10.0.0.9" in verdict.finding and "180 seconds" in verdict.finding


def test_a_node_that_cannot_write_says_why(tmp_path: Path, uri: str):
    done = doctor.write_row(str(tmp_path / "none"), 0)  # a node that does not see the table
    answer = NodeAnswer(node="10.0.0.1 (node n1)", value=done, problem=None)
    verdict = doctor.rate_store(uri, [answer])
    assert done.written is None and verdict.state == "fail" and "cannot be written from 10.0.0.1" in verdict.finding
    assert "all nodes mount" in verdict.fix and "which the driver wrote, is not there" in verdict.finding
    assert not (tmp_path / "none").exists()  # nothing is left on a disk of the node's own

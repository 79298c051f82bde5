"""A model that does not start in one process: another one is tried, and the node is named at last."""

import logging
import math
import re
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from curation.config import ActorsConfig, AskConfig, DecodingConfig, DomainConfig, ScriptedConfig
from curation.domains import get_domain
from curation.errors import RunFailedError
from curation.passes.messages import Starts
from curation.passes.run import PassResult
from curation.refs import TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas

pytestmark = pytest.mark.long

NUM_ROWS = 20


@pytest.fixture(scope="module")
def examples(puzzles, tmp_path_factory) -> TableRef:
    domain = get_domain(DomainConfig(name="chess"))
    rows = [domain.read(raw) | {"row_id": number, "error": None} for number, raw in enumerate(puzzles[:NUM_ROWS])]
    uri = str(tmp_path_factory.mktemp("examples") / "pool.lance")
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(domain.columns, gold=False))
    return TableRef(uri=uri, version=lance.write_dataset(table, uri).version)


def labelled(examples: TableRef, directory: Path, *, fails: int, max_restarts: int) -> PassResult:
    teacher = AskConfig(
        backend="tests.curation.passes.failing_start:BACKEND",
        options={"fails": fails},
        scripted=ScriptedConfig(log=str(directory / "log")),
        actors=ActorsConfig(max=1, max_restarts=max_restarts),
    ).model_copy(update={"chunk_seconds": math.inf})
    job = LabelJob(
        examples=examples,
        labels_uri=str(directory / "labels.lance"),
        domain=DomainConfig(name="chess"),
        teacher=teacher,
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )
    return label(job, state_size=8, share=RowShare(), commit_seconds=0.1)


def test_a_model_that_does_not_start_at_once_starts_in_another_process(local_ray, examples, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "curation"):
        result = labelled(examples, tmp_path, fails=2, max_restarts=8)
    assert sorted(io.read(result.table, ["row_id"])["row_id"].to_pylist()) == list(range(NUM_ROWS))
    assert not io.count(result.table, filter="error IS NOT NULL")
    assert len((tmp_path / "starts").read_text().splitlines()) == 3
    assert result.deaths == 0, "no row is suspected"
    assert re.search(r"did not start on \S+ \(node \w{8}\), try \d of 9: .*CUDA out of memory", caplog.text)


def test_a_node_on_which_no_model_starts_is_named_in_the_end(local_ray, examples, tmp_path):
    message = (
        r"the model did not start on \S+ \(node \w{8}\) in 3 tries in a row \(teacher\.actors\.max_restarts: 2\); mend "
        r"the node .* the last try: .*OutOfMemoryError: CUDA out of memory"
    )
    with pytest.raises(RunFailedError, match=message):
        labelled(examples, tmp_path, fails=99, max_restarts=2)
    assert len((tmp_path / "starts").read_text().splitlines()) == 3


def test_all_nodes_of_an_actor_are_named_and_a_start_in_between_forgives_them():
    starts = Starts(2)
    for node in ("a", "b", "a"):
        starts.begin("actor")
        starts.refuse("actor", node, f"no room on {node}")
    assert starts.words == ("the model did not start on a, try 3 of 3: no room on a",)
    with pytest.raises(RunFailedError, match=r"did not start on b, a in 3 tries .* the last try: no room on a"):
        starts.begin("actor")
    starts.begin("another")
    starts.record_work("actor")
    for _ in range(3):
        starts.begin("actor")
    assert starts.words == ()
    with pytest.raises(RunFailedError, match="an actor's process died 3 times in a row"):
        starts.begin("actor")

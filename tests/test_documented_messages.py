"""Messages and exit codes of docs/troubleshooting.md: a test produces each.

``PRODUCED`` names for a message the test that asserts all its words (tests/asserted.py reads them); the messages of
``HERE`` are produced in this file.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asserted import GAP, Unknown, asserted, asserted_in

from curation.errors import ClusterError, CommitError, ConfigError, ModelError, RunDirError, RunFailedError, SourceError
from curation.storage.weights import check_weights

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
PUT_IN = r"\.\.\.|\b[A-Z][A-Z_:]{2,}\b|\S+\.json:"
"""In a documented message: what differs."""


def documented() -> list[str]:
    """The messages of both tables: what stands in code, of a row without code its words."""
    tables = [text.partition("\n\n")[0] for text in PAGE.split("| message | meaning | what to do |")[1:]]
    rows = [row.split(" | ")[0].strip("| ") for table in tables for row in table.splitlines()[2:]]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row) or [row]]


PRODUCED = {
    "unknown key; ...": "curation/config/test_config.py::test_an_unknown_key_is_refused_with_the_nearest_known_one",
    "there is no such file or folder": "curation/sources/test_sources.py::test_what_is_not_there",
    "has no column ... rename or add it": "curation/test_cli.py::test_input_files_that_cannot_be_used",
    "splits ask for ... rows of source ... which has ...": "curation/sources/test_sources.py::test_impossible_splits",
    "both take the rest of source": "curation/sources/test_sources.py::test_impossible_splits",
    "remove repeated rows from the input files": "curation/stages/test_overlap.py::"
    "test_shared_questions_are_refused_dropped_or_reported",
    "a test split: add splits.test": "curation/config/test_config.py::test_rules_across_sections",
    "the pool's gold labels: set splits.audit: true": "curation/config/test_config.py::test_rules_across_sections",
    "are right in the ... part of the source, but both right and wrong ones are needed": "train/test_fit_trust.py::"
    "test_a_source_that_teaches_nothing_is_refused",
    "selection.budget: n = ... is more than the ...": "curation/stages/test_select.py::"
    "test_rows_whose_signal_could_not_be_read_rank_behind_all_others",
    "takes exactly one of path and init": "curation/config/test_config.py::test_keys_that_exclude_or_need_each_other",
    "the state ..., not among teacher.states; add it there": "curation/config/test_config.py::"
    "test_rules_across_sections",
    "exists already; name another file or move it away": "curation/test_cli.py::"
    "test_init_writes_a_valid_configuration_once",
    "no Ray answers at HOST:PORT": "curation/cluster/test_capacity.py::test_what_is_no_address",
    "the nodes of the cluster must have the versions of this process": "curation/cluster/test_nodes.py::"
    "test_a_node_with_another_version_is_refused_by_name",
    "...: waiting for the cluster's autoscaler": "curation/cluster/test_capacity.py::"
    "test_a_cluster_that_can_grow_is_waited_for",
    "there is no bucket": "curation/storage/test_paths.py::test_what_cannot_be_used_is_named",
    "the store does not answer as it should": "curation/storage/test_paths.py::test_what_cannot_be_used_is_named",
    "the lease was lost to ...; this driver commits nothing more": "test_fenced_training.py::"
    "test_a_training_stops_where_its_driver_was_paused_and_another_took_over",
    "Ray's object store is full, and so is the disk that it spills to": "test_full_object_store.py::"
    "test_a_full_object_store_ends_a_pass_and_a_fit_with_what_to_do",
    "another driver has written it": "curation/storage/test_paths.py::"
    "test_a_manifest_that_another_driver_wrote_is_not_overwritten",
    "another run is using it": "curation/test_cli.py::"
    "test_a_run_directory_of_another_configuration_or_in_use_is_a_mistake",
    "is of format": "curation/rundir/test_manifest.py::"
    "test_a_directory_of_an_earlier_format_is_read_and_not_gone_on_with",
    "names the table ..., which lies outside": "curation/test_cli.py::"
    "test_a_run_whose_record_names_a_table_elsewhere_is_refused_before_it_writes",
    "stage ... is damaged: ... missing or cut off": "curation/rundir/test_sealed.py::"
    "test_a_table_that_lost_rows_is_refused_with_the_command_that_redoes_it",
    "manifest.json: is damaged": "curation/commands/test_verify.py::"
    "test_a_changed_manifest_is_refused_by_all_who_read_it",
    "a file of a table is missing": "curation/rundir/test_sealed.py::"
    "test_a_version_that_cannot_be_read_says_what_is_wrong_with_it",
    "... is damaged": "curation/rundir/test_sealed.py::test_a_version_that_cannot_be_read_says_what_is_wrong_with_it",
    "keeps its small fragments": "curation/tables/test_compaction.py::"
    "test_of_a_compaction_and_another_drivers_commit_the_later_is_refused",
    "brings its own code": "curation/models/test_own_code.py::test_every_load_refuses_it_by_itself",
    "its weights are pickled": "curation/models/test_hostile_models.py::test_no_load_reaches_a_pickle",
    "belongs to another configuration": "curation/test_cli.py::"
    "test_a_run_directory_of_another_configuration_or_in_use_is_a_mistake",
    "the model did not start on ... in ... tries in a row": "curation/passes/test_starts.py::"
    "test_a_node_on_which_no_model_starts_is_named_in_the_end",
    "an actor's process died ... times in a row": "curation/stages/test_label.py::"
    "test_a_model_that_kills_every_process_fails_the_run_and_keeps_what_is_committed",
    "poison": "curation/stages/test_label.py::test_poison_rows_are_found_named_and_passed_by",
    "rows cannot be used ..., more than splits.max_error_rate": "curation/stages/test_prepare.py::"
    "test_too_many_bad_rows_are_refused_and_a_higher_limit_goes_on",
    "none of its ... rows has one": "curation/stages/test_prepare.py::"
    "test_too_many_bad_rows_are_refused_and_a_higher_limit_goes_on",
    "rows failed ..., more than teacher.max_error_rate": "test_stages_at_once.py::"
    "test_one_that_fails_lets_the_others_end_and_is_alone_done_again",
    "No space left on device": "test_full_store.py::test_a_disk_that_is_read_only_or_full_is_refused_at_once",
    "Read-only file system": "test_full_store.py::test_a_disk_that_is_read_only_or_full_is_refused_at_once",
    "...: nothing is selected yet": "curation/extras/test_review.py::"
    "test_runs_and_settings_that_do_not_fit_are_refused",
    "the chain stops after generation": "test_chain_kill.py::"
    "test_a_chain_stops_before_a_teacher_without_signal_and_goes_on_when_told",
    "generations: ... needs ... shares of the pool: set chain.shares": "curation/config/test_config.py::"
    "test_rules_across_sections",
}


def another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from curation.cluster import capacity, session
    from curation.config import RayConfig

    def init(**settings: Any) -> None:
        raise RuntimeError("Version mismatch")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(capacity, "check_answers", lambda address: None)
    session._start_ray(RayConfig(address="host:6379"))


def too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.cluster import capacity, nodes

    monkeypatch.setattr(nodes, "list_living", lambda: [{"Resources": {"CPU": 2.0}}])
    monkeypatch.setattr(capacity, "can_autoscale", lambda: False)
    capacity.check_room([capacity.Need(key="teacher.actors", count=1, resources={"CPU": 1, "GPU": 1})])


def lost_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from curation.refs import TableRef
    from curation.stages import prepare, split_tables

    counts = {"pool": prepare.SplitCounts(rows=9, errors={})}
    job = split_tables.SplitJob(sources={}, tables={"pool": split_tables.SplitTable("pool.lance", pa.schema([]), 10)})
    prepare._check_tables(job, {"pool": TableRef(uri="pool.lance", version=1)}, counts)


def denied(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    from curation.storage import paths

    def forbid(*what: Any, **how: Any) -> Any:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(obstore, "list", forbid)
    monkeypatch.setattr(paths, "_store", lambda *where: None)
    paths.require_reachable(paths.to_place("s3://bucket/folder"))


def damaged_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(b"no header")
        check_weights(Path(folder))


def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from curation.cluster import session
    from curation.config import RayConfig

    def init(**settings: Any) -> None:
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", init)
    session._start_ray(RayConfig(num_cpus=1))


def credential(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.config.load import parse_config

    parse_config({"name": "x", "sources": {"rows": {"path": "s3://KEY:SECRET@bucket/rows.parquet"}}})


def changed_source(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from curation.sources import SourceFile, check_unchanged

    file = SourceFile(path="a.csv", format="csv", index=0, num_rows=3, size=9, modified="1", schema={"x": "text"})
    check_unchanged([file], [replace(file, num_rows=4)])


HERE: dict[str, tuple[type[Exception], Callable[[pytest.MonkeyPatch], None]]] = {
    "cannot be joined from this machine (...)": (ClusterError, another_cluster),
    "the cluster is too small: teacher.actors asks for ...": (ClusterError, too_small),
    "access is denied": (RunDirError, denied),
    "... rows in, ... rows out": (CommitError, lost_rows),
    "Ray did not start": (RunFailedError, slow_machine),
    "holds a credential": (ConfigError, credential),
    "a source file changed or vanished": (SourceError, changed_source),
    "is damaged or no safetensors file": (ModelError, damaged_weights),
}
SAID = {"a source file changed or vanished": "changed since this run began"}
"""What stands in the message, of a row of the page that does not quote it."""


def parts_of(message: str) -> list[str]:
    """The words of a documented message between what differs."""
    parts = [part.strip(" :;,") for part in re.split(PUT_IN, message)]
    return [part for part in parts if len(part) > 2]


def test_every_documented_message_has_a_test() -> None:
    messages = documented()
    assert len(messages) > 45
    assert [message for message in messages if message not in PRODUCED | HERE] == [], "name the test that produces it"
    assert [message for message in PRODUCED | HERE if message not in messages] == [], "no longer documented"


@pytest.mark.parametrize("message", PRODUCED)
def test_the_test_that_is_named_asserts_the_message(message: str) -> None:
    found = asserted(PRODUCED[message])
    missing = [part for part in parts_of(message) if not found.says([part])]
    assert missing == [], f"{PRODUCED[message]} does not assert it"


@pytest.mark.parametrize("message", HERE)
def test_a_message_is_produced(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, produce = HERE[message]
    with pytest.raises(kind) as caught:
        produce(monkeypatch)
    said = SAID.get(message, message)
    assert re.search(".+".join(map(re.escape, said.split("..."))).removeprefix(".+ "), str(caught.value))


CODES = {
    0: "curation/test_cli.py::test_init_writes_a_valid_configuration_once",
    2: "curation/test_cli.py::test_mistakes_are_one_line_and_exit_code_2",
    1: "test_stages_at_once.py::test_one_that_fails_lets_the_others_end_and_is_alone_done_again",
    3: "test_filter.py::test_a_shifted_pool_raises_an_alarm_with_an_exit_code_of_its_own",
    130: "test_interrupts.py::test_a_driver_that_waits_says_in_a_line_that_it_was_stopped",
    143: "test_interrupts.py::test_a_driver_that_waits_says_in_a_line_that_it_was_stopped",
}
"""By an exit code of ``curate``, the test that asserts it."""


def test_the_documented_exit_codes_have_tests() -> None:
    line = PAGE.partition("Exit codes: ")[2].partition("After all")[0]
    assert list(map(int, re.findall(r"\b\d+\b", line))) == list(CODES)
    for page in (ROOT / "docs").glob("*.md"):
        assert set(map(int, re.findall(r"exit codes? (?:is )?\(?(\d+)", page.read_text()))) <= CODES.keys(), page.name
    assert [(code, name) for code, name in CODES.items() if code not in asserted(name).numbers] == []


CASE = '''
"""exit code 1: it is broken"""
SAID = "the disk is full"

def told(line):
    assert line.startswith("curate: stage")
    return line

@pytest.mark.parametrize(("given", "found"), [("a typo", "unknown key"), ("b", f"line {N}: bad")])
def test_one(given, found):
    # assert "a comment" in line
    line = told(run({"key": "an argument"}))
    assert found in line and "no traceback" not in line and not line.count("twice")
    assert run("another argument").code == 7 and line.count("once") == 1 and 9 != number
    with pytest.raises(ValueError, match=rf"{SAID}\\.$"):
        run()
    with pytest.raises(ValueError, match=SAID):
        run()

@pytest.mark.skip(reason="later")
def test_two():
    assert "never" in run()
'''


def test_what_a_test_asserts_is_read_from_its_code() -> None:
    found = asserted_in(CASE, "test_one")
    assert found.texts == {
        "curate: stage", "unknown key", f"line {GAP}: bad", "once", f"{GAP}.$", "the disk is full"
    }  # fmt: skip
    assert found.numbers == {1, 7}
    assert found.says(["unknown", "line"]) and not found.says(["unknown", "a comment"]) and not found.says([])
    for name, told in {"test_two": "skipped", "test_three": "no such test"}.items():
        with pytest.raises(Unknown, match=told):
            asserted_in(CASE, name)
    with pytest.raises(Unknown, match="no such file"):
        asserted("test_nothing.py::test_one")


def test_completion_is_what_the_page_says() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().partition("## In scripts")[2].partition("\n## ")[0]
    for shell in ("bash", "zsh", "fish"):
        assert f"{shell}_source" in section
    command = str(Path(sys.executable).with_name("curate"))
    env = os.environ | {"_CURATE_COMPLETE": "zsh_source"}
    assert "#compdef curate" in subprocess.run([command], env=env, capture_output=True, text=True).stdout
    words = {"_CURATE_COMPLETE": "zsh_complete", "COMP_WORDS": "curate sta", "COMP_CWORD": "1"}
    done = subprocess.run([command], env=os.environ | words, capture_output=True, text=True)
    assert "status" in done.stdout.split()

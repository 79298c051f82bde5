"""Messages and exit codes that docs/troubleshooting.md explains: the code says them, and a test produces each.

A message that another test produces is named here with that test's file and a text that the test looks for; the others
are produced here.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from curation.errors import ClusterError, CommitError, ConfigError, RunDirError, RunFailedError, SourceError

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## Messages and what to do")[2]
TABLE = PAGE.partition("| message | meaning | what to do |")[2].partition("\n\n")[0]
MESSAGES = [row.split(" | ")[0].strip("| ") for row in TABLE.splitlines()[2:]]

ELSEWHERE = {
    "no Ray answers at": ("curation/cluster/test_capacity.py", "no Ray answers"),
    "what listens at": ("curation/cluster/test_capacity.py", "did not answer as Ray"),
    "the nodes of the cluster must have": ("curation/cluster/test_nodes.py", "require_same_versions"),
    "waiting for the cluster's autoscaler": (
        "curation/cluster/test_capacity.py",
        "waiting for the cluster's autoscaler",
    ),
    "there is no bucket": ("curation/storage/test_paths.py", "as it should"),
    "another driver has written it": ("curation/storage/test_paths.py", "another driver has written it"),
    "another run is using it": ("curation/test_cli.py", "another run is using it"),
    "was moved or copied": ("curation/commands/test_clean.py", "was moved or copied"),
    "stage ... is damaged": ("curation/rundir/test_sealed.py", "is damaged"),
    "manifest.json: is damaged": ("curation/rundir/test_sealed.py", "manifest"),
    "a file of a table is missing": ("curation/rundir/test_sealed.py", "a file of a table is missing ("),
    "keeps its small fragments": ("curation/tables/test_compaction.py", "keeps its small fragments"),
    "brings its own code": ("curation/models/test_own_code.py", "brings its own code"),
    "belongs to another configuration": ("curation/test_cli.py", "seed was 7, is 0"),
    "an actor's process died": ("curation/stages/test_label.py", "times in a row"),
    "error rows `poison`": ("curation/stages/test_label.py", "poison"),
    "rows cannot be used": ("curation/stages/test_prepare.py", "more than splits.max_error_rate"),
    "none of its ... rows has one": ("curation/stages/test_prepare.py", "none of its 100 rows has one"),
    "rows failed": ("test_stages_at_once.py", "more than teacher.max_error_rate"),
    "No space left on device": ("test_full_store.py", "No space left on device"),
    "audit: ... nothing is selected yet": ("curation/commands/test_audit.py", "nothing is selected yet"),
    "the chain stops after generation": ("curation/pipeline/test_chains.py", "the chain stops after generation 0"),
    "--port": ("curation/commands/test_audit_page.py", "cannot be used"),
    "verdicts.jsonl were cut off": ("curation/commands/test_audit_log.py", "num_torn"),
}
"""By a part of the documented message."""


def asked(monkeypatch: pytest.MonkeyPatch, stderr: str) -> None:
    """What the process that asks a cluster says."""
    from curation.cluster import capacity

    answer = SimpleNamespace(returncode=1, stderr=f"Traceback\n{stderr}\n")
    monkeypatch.setattr(capacity.subprocess, "run", lambda *command, **how: answer)
    capacity._check_ray("host:6379")


def refused_token(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, "ray.exceptions.AuthenticationError: the token is invalid")


def other_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.cluster import capacity, ray_private

    monkeypatch.setattr(ray_private, "Head", lambda address: SimpleNamespace(ray_version=lambda: "2.59.0"))
    capacity.ask("host:6379")


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.cluster import capacity, ray_private

    head = SimpleNamespace(ray_version=lambda: None, node_sockets=lambda timeout: ["/no/such/socket"])
    monkeypatch.setattr(ray_private, "Head", lambda address: head)
    capacity.ask("host:6379")


def too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.cluster import capacity, nodes

    monkeypatch.setattr(nodes, "living", lambda: [{"Resources": {"CPU": 2.0}}])
    monkeypatch.setattr(capacity, "autoscales", lambda: False)
    capacity.check_room([capacity.Need(key="teacher.actors", count=1, resources={"CPU": 1, "GPU": 1})])


def lost_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from curation.refs import TableRef
    from curation.stages import prepare

    counts = {"pool": prepare.SplitCounts(rows=9, errors={})}
    prepare._check({"pool": TableRef(uri="pool.lance", version=1)}, counts, {"pool": 10})


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
    "does not take this token": (ClusterError, refused_token),
    "it is Ray ..., and this is ...": (ClusterError, other_ray),
    "none of its nodes is this machine": (ClusterError, elsewhere),
    "the cluster is too small: teacher.actors asks for ...": (ClusterError, too_small),
    "... rows in, ... rows out": (CommitError, lost_rows),
    "Ray did not start": (RunFailedError, slow_machine),
    "holds a credential": (ConfigError, credential),
    "a source file changed": (SourceError, changed_source),
}


def test_every_documented_message_has_a_test() -> None:
    assert len(MESSAGES) > 25
    for message in MESSAGES:
        known = [part for part in (*ELSEWHERE, *HERE) if part in message]
        assert len(known) == 1, f"{message}: name the test that produces it in {Path(__file__).name}"
    for part in (*ELSEWHERE, *HERE):
        assert any(part in message for message in MESSAGES), f"{part}: is no longer documented"


@pytest.mark.parametrize("part", ELSEWHERE)
def test_a_message_is_produced_by_the_test_that_is_named(part: str) -> None:
    name, text = ELSEWHERE[part]
    assert text in (ROOT / "tests" / name).read_text(), name


@pytest.mark.parametrize("part", HERE)
def test_a_message_is_produced(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, produce = HERE[part]
    with pytest.raises(kind) as caught:
        produce(monkeypatch)
    said = {"a source file changed": "changed since this run began"}.get(part, part)
    assert re.search(re.escape(said).replace(r"\.\.\.", ".+").removeprefix(".+ "), str(caught.value)), caught.value


def test_a_store_that_denies_access_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    from curation.storage import paths

    def denied(*what: Any, **how: Any) -> Any:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(obstore, "list", denied)
    monkeypatch.setattr(paths, "_store", lambda *where: None)
    with pytest.raises(RunDirError, match="access is denied"):
        paths.require_reachable(paths.place("s3://bucket/folder"))


def test_the_documented_exit_codes_have_tests() -> None:
    """0, 1 and 2 are looked at by most tests of the command line; the others here by name."""
    line = PAGE.partition("Exit codes: ")[2].partition("After all")[0]
    assert re.findall(r"\b\d+\b", line) == ["0", "2", "1", "3", "130", "143"]
    for code, name in {"3": "test_filter.py", "130": "test_interrupts.py", "143": "test_interrupts.py"}.items():
        assert re.search(rf"\b{code}\b", (ROOT / "tests" / name).read_text()), (code, name)


def test_completion_is_what_the_page_says() -> None:
    import os

    section = (ROOT / "docs" / "operations.md").read_text().partition("## In scripts")[2].partition("\n## ")[0]
    for shell in ("bash", "zsh", "fish"):
        assert f"{shell}_source" in section
    command = str(Path(sys.executable).with_name("curate"))
    env = os.environ | {"_CURATE_COMPLETE": "zsh_source"}
    assert "#compdef curate" in subprocess.run([command], env=env, capture_output=True, text=True).stdout
    words = {"_CURATE_COMPLETE": "zsh_complete", "COMP_WORDS": "curate sta", "COMP_CWORD": "1"}
    done = subprocess.run([command], env=os.environ | words, capture_output=True, text=True)
    assert "status" in done.stdout.split()

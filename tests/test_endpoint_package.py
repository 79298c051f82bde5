"""Packages of runs whose teacher is a server: a filter asks it for new rows, and a reader reads each answer once."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
import test_endpoint_reader_run as with_reader
import test_endpoint_run as without_reader
import yaml
from click.testing import CliRunner
from endpoint_server import Server, serving
from sums_run import NUM_SOURCE

from benchmarks.recorded import recorded
from curation import Filter
from curation.cli import main
from curation.errors import PackageError
from curation.filter.package.folder import load

pytestmark = [pytest.mark.timeout(1200), pytest.mark.whole_run]
NUM_NEW, KEPT = 60, 20


def curate(*arguments: str, fails: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == fails, result.output
    return " ".join(result.output.split())


def write_rows(path: Path, first: int, num_rows: int) -> None:
    """Sums that no run has seen."""
    rows = [{"problem": f"What is {n + 1} - {n}?"} for n in range(first, first + num_rows)]
    path.write_text("\n".join(map(json.dumps, rows)))


def filtering(folder: Path, package: Path, url: str, **changes: Any) -> Path:
    """A filter of rows that the run has not seen."""
    (folder / "rows").mkdir(parents=True)
    write_rows(folder / "rows" / "new.jsonl", 9_000, NUM_NEW)
    endpoint = {"url": url, "model": "m", "concurrency": 4, "price": without_reader.PRICE, "limit": 1000}
    config = {
        "package": str(package),
        "pool": {"path": str(folder / "rows")},
        "output": {"path": str(folder / "kept")},
        "keep": {"n": KEPT},
        "teacher": {"endpoint": endpoint, "chunk_rows": 20},
        "anyway": True,
        "on_shift": "ignore",
        **changes,
    }
    (folder / "filter.yaml").write_text(yaml.safe_dump(config))
    return folder / "filter.yaml"


def stages_of(folder: Path) -> dict[str, Any]:
    home = folder / "kept" / "_curation"
    return recorded(home) if (home / "manifest.json").exists() else {}


def labels_of(folder: Path, name: str) -> dict[int, dict[str, Any]]:
    ref = stages_of(folder)[name]["outputs"]["labels"]
    table = lance.dataset(ref["uri"], version=ref["version"]).to_table()
    return {row["row_id"]: row for row in table.to_pylist()}


@pytest.fixture(scope="module")
def read(local_ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path, str]]:
    """A server, the package of a run whose answers a model read, and that model."""
    folder = tmp_path_factory.mktemp("read")
    reader = with_reader.made(folder, 1)
    with serving(answer=without_reader.answer, seconds=0.02) as server:
        run = with_reader.make_run(folder, server.url, reader)
        run.run()
        curate("export-trust", str(run.directory), "-o", str(folder / "package"))
        yield server, folder / "package", reader


def test_a_package_names_the_server_s_model_and_the_reader_and_no_address(read: tuple[Server, Path, str]) -> None:
    server, package, reader = read
    described = json.loads((package / "package.json").read_text())["description"]
    assert described["teacher"]["base"] == reader and described["ask"]["reads_given"]
    assert described["ask"]["states"] == with_reader.STATES and described["ask"]["endpoint"] is None
    assert described["bought"]["backend"] == "endpoint" and described["bought"]["states"] == []
    assert described["bought"]["endpoint"] == {"model": "m", "kind": "openai", "top_logprobs": 20, "body": {}}
    assert not any(server.url.encode() in path.read_bytes() for path in package.rglob("*") if path.is_file())
    assert f"answers of `m` on a server of kind openai, read by `{reader}`" in (package / "README.md").read_text()


def test_a_filter_buys_each_answer_once_and_reads_it(read: tuple[Server, Path, str], tmp_path: Path) -> None:
    """The driver is killed when the answers are bought, and before they are read."""
    server, package, reader = read
    before, folder = len(server.asked), tmp_path / "filter"
    path = filtering(folder, package, server.url)
    with (tmp_path / "log").open("ab") as log:
        command = [sys.executable, "-m", "curation.cli", "filter", str(path)]
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    begun = time.monotonic()
    while "buy-0000" not in stages_of(folder):
        assert driver.poll() is None and time.monotonic() - begun < 500, (tmp_path / "log").read_text()
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert "label-0000" not in stages_of(folder) and len(server.asked) == before + NUM_NEW
    curate("filter", str(path))
    assert len(server.asked) == before + NUM_NEW, "nothing was asked after the kill"

    # The rows are the server's, scored by states of a plain forward pass over prompt and answer.
    content = json.loads((folder / "kept" / "filter.json").read_text())
    assert content["kept"] == KEPT and content["rows"] == NUM_NEW
    bought, scored = labels_of(folder, "buy-0000"), labels_of(folder, "label-0000")
    assert bought.keys() == scored.keys() and len(scored) == NUM_NEW
    for row_id, row in scored.items():
        names = ("completion", "label", "mean_logprob", "margin", "num_prompt_tokens", "error")
        assert [row[name] for name in names] == [bought[row_id][name] for name in names]
        assert row["error"] is None and row["trust_raw"] is not None
    row_id, row = next(iter(scored.items()))
    description = load(package).description
    from curation.domains import get_domain

    prompt = get_domain(description.domain).prompt({"problem": f"What is {9_001 + row_id} - {9_000 + row_id}?"})
    expected = with_reader.states_by_hand(reader, prompt, row["completion"])
    for name in with_reader.STATES:
        assert row[f"state_{name}"] == pytest.approx(expected[name].tolist(), abs=1e-4)

    # A new file is bought and read; what was there is not.
    write_rows(folder / "rows" / "newer.jsonl", 20_000, 10)
    curate("filter", str(path))
    assert len(server.asked) == before + NUM_NEW + 10 and max(server.paid.values()) == 1
    assert len(labels_of(folder, "label-0001")) == 10


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({}, "was fitted on answers of 'm' on a server of kind openai; say where it is: teacher.endpoint"),
        ({"endpoint": {"url": "http://localhost:9/v1", "model": "n"}}, "with model 'm', and teacher.endpoint.model"),
        ({"endpoint": {"url": "http://localhost:9/v1", "model": "m"}, "backend": "scripted"}, "only backends that"),
    ],
)
def test_another_server_is_refused(
    read: tuple[Server, Path, str], tmp_path: Path, teacher: dict[str, Any], message: str
) -> None:
    _, package, _ = read
    path = filtering(tmp_path / "filter", package, "http://localhost:9/v1", teacher=teacher)
    assert message in curate("filter", str(path), fails=2)


def test_the_library_names_the_command(read: tuple[Server, Path, str]) -> None:
    _, package, _ = read
    with pytest.raises(PackageError, match=r"reads answers that a server gives.*`curate filter`"):
        Filter.load(package, anyway=True)


def test_a_description_without_a_model_that_reads_is_refused(read: tuple[Server, Path, str]) -> None:
    description = load(read[1]).description.model_dump(mode="json")
    kind = type(load(read[1]).description)
    for changes in (
        {"teacher": None, "teacher_digests": {}},
        {"ask": {**description["ask"], "reads_given": False}},
        {"bought": {**description["bought"], "backend": "transformers"}},
        {"bought": {**description["bought"], "states": ["output_last"]}},
    ):
        with pytest.raises(ValueError, match=r"bought|ask: "):
            kind.model_validate({**description, **changes})


def test_a_package_of_a_server_alone_filters(local_ray: Any, tmp_path: Path) -> None:
    with serving(answer=without_reader.answer) as server:
        run = without_reader.make_run(tmp_path, server)
        run.run()
        curate("export-trust", str(run.directory), "-o", str(tmp_path / "package"))
        described = json.loads((tmp_path / "package" / "package.json").read_text())["description"]
        assert described["bought"] is None and described["ask"]["endpoint"]["model"] == "m"
        before = len(server.asked)
        curate("filter", str(filtering(tmp_path / "filter", tmp_path / "package", server.url)))
        assert len(server.asked) == before + NUM_NEW
        _compare_questions(tmp_path, server)
    assert json.loads((tmp_path / "filter" / "kept" / "filter.json").read_text())["kept"] == KEPT


def _compare_questions(folder: Path, server: Server) -> None:
    """The package has the words of the labelled rows: sums of the same numbers pass, longer questions do not."""
    described = json.loads((folder / "package" / "package.json").read_text())["description"]
    assert described["sample"] == {"split": "source", "num_rows": 0, "states": [], "num_texts": NUM_SOURCE}
    assert b"What" not in (folder / "package" / "shift.safetensors").read_bytes()
    path = filtering(folder / "compared", folder / "package", server.url, on_shift="fail", keep={"threshold": 0.01})
    rows, home = folder / "compared" / "rows", folder / "compared" / "kept"
    numbers = random.Random(0).sample(range(NUM_SOURCE + without_reader.NUM_POOL), 100)
    (rows / "new.jsonl").write_text("\n".join(json.dumps({"problem": f"What is {n + 1} - {n}?"}) for n in numbers))
    curate("filter", str(path))
    (first,) = json.loads((home / "filter.json").read_text())["rounds"]
    assert not first["shift"]["alarm"] and first["shift"]["strength"] != "untested" and first["kept"] > 0
    assert (first["shift"]["num_source"], first["shift"]["num_pool"]) == (NUM_SOURCE, 100)

    other = [{"problem": f"Dear tutor, please tell me quickly: What is {n + 1} - {n}?"} for n in numbers[:40]]
    (rows / "other.jsonl").write_text("\n".join(map(json.dumps, other)))
    told = curate("filter", str(path), fails=3)
    assert "round 0001: The questions (their words) differ (severe" in told and "Nothing of it was written" in told
    assert len(json.loads((home / "filter.json").read_text())["rounds"]) == 1
    assert "The questions (their words) differ" in curate("filter", str(path), "--on-shift", "warn", fails=3)
    second = json.loads((home / "filter.json").read_text())["rounds"][1]
    assert second["shift"]["alarm"] and second["shift"]["auc"]["low"] > 0.8 and second["kept"] > 0
    assert "round 0001: shift: ALARM: The questions" in curate("status", str(home))

"""The graph of stages: keys, order, what a change redoes, what has nothing to do."""

import json
import math
from typing import Any

import pytest
from built import Built
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.config import TrustConfig
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, Out, Skipped, Stage, Unknown, make_cache_key, order_stages
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run
from curation.rundir.status import iter_statuses


def stage(name: str, outputs: Any = None, *, settings: Any = None, needs: Any = (), revision: int = 1, **inputs: Any):
    """A stage that makes ``outputs`` of its arguments, or says which they were."""

    def work(task: Any, **arguments: Any) -> Done:
        made = outputs(arguments) if callable(outputs) else {"said": json.dumps(arguments, default=str)}
        return Done(outputs=made, rows=1)

    return Built(name=name, work=work, inputs=inputs, settings=settings or {}, needs=needs, revision=revision)


def states(targets: list[Out], manifest: Manifest) -> dict[str, str]:
    return {status.stage.name: status.words for status in iter_statuses(order_stages(targets), manifest)}


def run(tmp_path: Any, targets: list[Out]) -> tuple[list[str], Any]:
    """The stages that were done, and all that is known then."""
    manifest = Manifest.load(tmp_path)
    known = Run("test", manifest, max_stages=1, room=dict).do(order_stages(targets))
    events = [json.loads(line) for line in manifest.events.last(1 << 20)]
    done = [event["stage"] for event in events if event["event"] == "finished"]
    (tmp_path / "events.jsonl").unlink(missing_ok=True)
    return done, known


def chain(rate: float = 0.1, n: int = 2, arms: tuple[str, ...] = ("naive", "trust")) -> list[Out]:
    """Labels, a selection of at most three rows, a student an arm, and tests of the students and of their base."""
    labels = stage("label", lambda read: {"labels": {"uri": "labels", "version": read["seed"]}}, seed=3)
    select = stage(
        "select",
        lambda read: {"rows": {arm: f"{arm}-{min(read['n'], 3)}" if read["n"] else None for arm in ("naive", "trust")}},
        labels=labels.table("labels"),
        n=n,
    )
    students = {
        arm: stage(f"student-{arm}", lambda read: {"model": f"{read['rows']}:{read['rate']}"}, rows=rows, rate=rate)
        for arm in arms
        for rows in [select.value("rows", arm)]
    }
    tests = [stage("test-base", model="base")]
    tests += [stage(f"test-{arm}", model=made.value("model")) for arm, made in students.items()]
    return [test.value("said") for test in tests]


def test_a_change_redoes_what_reads_it_and_nothing_else(tmp_path):
    assert run(tmp_path, chain())[0] == [
        "test-base", "label", "select", "student-naive", "test-naive", "student-trust", "test-trust",
    ]  # fmt: skip
    assert run(tmp_path, chain())[0] == []
    records = Manifest.load(tmp_path)
    told = states(chain(rate=0.2), records)
    assert told["test-base"] == told["select"] == "done"  # it was "to do" where places in a list told it
    assert told["student-naive"] == "changed: rate was 0.1, is 0.2"
    assert told["test-naive"] == "waits for student-naive"
    assert run(tmp_path, chain(rate=0.2))[0] == ["student-naive", "test-naive", "student-trust", "test-trust"]


def test_a_stage_that_makes_the_same_again_redoes_nothing_after_it(tmp_path):
    run(tmp_path, chain(n=3))
    assert states(chain(n=4), Manifest.load(tmp_path))["student-naive"] == "waits for select"
    assert run(tmp_path, chain(n=4))[0] == ["select"]


def test_a_new_arm_is_a_new_stage_and_one_less_is_none(tmp_path):
    run(tmp_path, chain(arms=("naive",)))
    assert run(tmp_path, chain())[0] == ["student-trust", "test-trust"]
    assert run(tmp_path, chain(arms=("trust",)))[0] == []


def test_settings_and_a_stage_that_only_they_name_are_no_part_of_the_key(tmp_path):
    def targets(threads: int) -> list[Out]:
        made = stage("make", lambda read: {"rows": read["threads"]}, threads=threads)
        return [stage("use", settings={"rows": made.value("rows"), "threads": threads}, seed=0).value("said")]

    assert run(tmp_path, targets(1))[0] == ["make", "use"]
    done, known = run(tmp_path, targets(2))
    assert done == ["make"]
    assert json.loads(known["use"]["said"]) == {"seed": 0, "rows": 1, "threads": 1}


def test_a_raised_revision_redoes_the_stage_alone_where_it_makes_the_same(tmp_path):
    def targets(revision: int) -> list[Out]:
        made = stage("make", lambda read: {"n": 1}, revision=revision, seed=0)
        return [stage("use", n=made.value("n")).value("said")]

    run(tmp_path, targets(1))
    assert states(targets(2), Manifest.load(tmp_path))["make"] == "changed: revision was 1, is 2"
    assert run(tmp_path, targets(2))[0] == ["make"]


def test_without_an_output_that_is_needed_there_is_nothing_to_do(tmp_path):
    done, known = run(tmp_path, chain(n=0))
    assert done == ["test-base", "label", "select"]
    assert known["test-naive"] == Skipped("select made no rows naive")
    told = states(chain(n=0), Manifest.load(tmp_path))
    assert told["student-trust"] == told["test-trust"] == "nothing to do: select made no rows trust"

    made = stage("make", lambda read: {"rows": None}, seed=0)
    optional = stage("use", rows=made.value("rows").or_none)
    gated = stage("gated", needs=(made.value("rows"),), seed=1)
    done, known = run(tmp_path, [optional.value("said"), gated.value("said")])
    assert done == ["make", "use"] and json.loads(known["use"]["said"]) == {"rows": None}
    assert isinstance(known["gated"], Skipped)


def test_work_takes_references_and_sections_and_the_key_holds_json():
    made = stage("make", seed=0)
    read = Built(
        name="read",
        work=lambda task: Done(outputs={}, rows=0),
        inputs={"labels": made.table("labels"), "trust": TrustConfig(width=256), "pair": (1, 2)},
    )
    key = make_cache_key(read, {"make": {"labels": {"uri": "x", "version": 2}}})
    assert key["labels"] == {"uri": "x", "version": 2} and key["pair"] == [1, 2] and key["trust"] == {"width": 256}
    assert json.loads(json.dumps(key)) == key
    with pytest.raises(Unknown):
        make_cache_key(read, {})
    assert made.table("labels").read({"uri": "x", "version": 2}) == TableRef(uri="x", version=2)


@pytest.mark.parametrize("value", [object(), {1: 2}, b"x", {"a": {3}}, [complex(1, 1)]])
def test_a_key_refuses_what_is_no_json(value: Any):
    with pytest.raises(TypeError, match=r"which is not (JSON|a string)"):
        make_cache_key(stage("read", value=value), {})


def test_a_key_refuses_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        fingerprint(make_cache_key(stage("read", value=math.nan), {}))


def test_two_stages_of_one_name_and_circles_are_refused():
    one, other = stage("same", seed=0), stage("same", seed=1)
    with pytest.raises(ValueError, match="two stages are called same"):
        order_stages([one.value("said"), other.value("said")])
    inputs: dict[str, Any] = {}
    first = Built(name="first", work=lambda task: Done(outputs={}, rows=0), inputs=inputs)
    inputs["second"] = stage("second", first=first.value("x")).value("x")
    with pytest.raises(ValueError, match="waits for itself"):
        order_stages([first.value("x")])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[list[int], bool]], list[int], int]:
    """Stages by the earlier ones that each reads and whether it hands their content on; their seeds; one to change."""
    num = draw(st.integers(2, 9))
    shape = []
    for place in range(num):
        reads = draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else []
        shape.append((reads, draw(st.booleans())))
    return shape, draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)), draw(st.integers(0, num - 1))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(graphs())
def test_what_is_redone_is_exactly_what_reads_something_that_changed(tmp_path_factory, drawn):
    shape, seeds, changed = drawn

    def build(seeds: list[int]) -> list[Out]:
        made: list[Stage] = []
        for place, (reads, hands_on) in enumerate(shape):
            inputs = {f"of-{other}": made[other].value("content") for other in reads}
            outputs = (lambda read: {"content": dict(read)}) if hands_on else (lambda read: {"content": "same"})
            made.append(stage(f"stage-{place}", outputs, seed=seeds[place], **inputs))
        return [item.value("content") for item in made]

    def content(seeds: list[int]) -> list[Any]:
        found: list[Any] = []
        for place, (reads, hands_on) in enumerate(shape):
            read = {f"of-{other}": found[other] for other in reads}
            found.append({"seed": seeds[place], **read} if hands_on else "same")
        return found

    directory = tmp_path_factory.mktemp("run")
    run(directory, build(seeds))
    after = [seed + (place == changed) for place, seed in enumerate(seeds)]
    before_content, after_content = content(seeds), content(after)
    expected = [
        f"stage-{place}"
        for place, (reads, _) in enumerate(shape)
        if place == changed or any(before_content[other] != after_content[other] for other in reads)
    ]
    planned = list(iter_statuses(order_stages(build(after)), Manifest.load(directory)))
    done, known = run(directory, build(after))
    assert sorted(done) == sorted(expected)
    assert {status.stage.name for status in planned if status.state == "changed"} <= set(done)
    assert set(done) <= {status.stage.name for status in planned if status.state in ("changed", "waits")}
    assert [known[f"stage-{place}"]["content"] for place in range(len(shape))] == after_content

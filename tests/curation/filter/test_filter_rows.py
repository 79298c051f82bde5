"""The filter as a library, in this process: labels, trust and errors of a stream of rows, and the watch over it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from tiny_package import COMPLETIONS, INTERCEPT, SEED, SLOPE, direction, of_model, probe, states_of, sums, tiny_package

import curation
from curation.errors import ConfigError, PackageError, SourceError
from curation.filter import Filter
from curation.filter.package.folder import TrustPackage
from curation.hashing import hash64
from curation.metrics.shift import compare_samples
from curation.refs import ModelRef
from curation.tables import schemas
from curation.telemetry.metrics import Meter
from deploy.replica import Door, Replica, ShiftWatch

ADDED = ("label", "completion", "trust", "trust_raw", "error")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return tiny_package(tmp_path_factory.mktemp("packages") / "tiny")


def test_labels_and_trust_are_those_of_teacher_and_trust_function(package: TrustPackage):
    rows = [{**row, "id": 7 * n, "mine": [n]} for n, row in enumerate(sums(60))]
    filtered = Filter.load(package)
    found = list(filtered.score(rows, batch_rows=16))
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert all(tuple(row) == ("problem", "answer", "id", "mine", *ADDED) for row in found)
    ids_N = np.array(filtered._read_examples(rows)[0])
    fitted = probe()[0]
    raw_N = states_of(ids_N).astype(np.float64) @ fitted.weight_D.numpy() + fitted.bias.item()
    choices = hash64(ids_N, SEED) % np.uint64(len(COMPLETIONS))
    for row, raw, choice in zip(found, raw_N, choices.tolist(), strict=True):
        assert row["completion"] == COMPLETIONS[choice] and row["error"] is None
        assert row["label"] == ("1", "2", None)[choice]
        if row["label"] is None:
            assert row["trust"] is None and row["trust_raw"] is None
        else:
            assert row["trust_raw"] == pytest.approx(raw, abs=1e-5)
            assert row["trust"] == pytest.approx(expit(SLOPE * raw + INTERCEPT), abs=1e-6)
    assert {row["label"] for row in found} == {"1", "2", None}


def test_results_depend_on_the_row_alone(package: TrustPackage):
    filtered = Filter.load(package)
    rows = sums(40)
    expected = {row["problem"]: row for row in filtered.score(rows)}
    for order, batch_rows in ((rows[::-1], 7), (rows + rows, 80), (rows[5:9] * 3, 1)):
        found = list(filtered.score(order, batch_rows=batch_rows))
        assert found == [expected[row["problem"]] for row in order]
    assert list(filtered.score([])) == []
    assert next(filtered.score(iter(rows))) == expected[rows[0]["problem"]]


def test_rows_that_cannot_be_read_stay_with_an_error(package: TrustPackage):
    odd = [{"text": "?"}, {"problem": None}, {"problem": " ", "n": 1}, {"problem": 5}, *sums(1)]
    found = list(Filter.load(package).score(odd))
    assert [{name: row[name] for name in given} for given, row in zip(odd, found, strict=True)] == odd
    kinds = [None if row["error"] is None else row["error"].split(":")[0] for row in found]
    assert kinds[:3] == ["missing_column", "null_field", "null_field"] and kinds[4] is None
    assert all(row["trust"] is row["label"] is None for row in found if row["error"])


def test_an_example_is_read_as_it_is(package: TrustPackage):
    filtered = Filter.load(package)
    example = {"problem": sums(1)[0]["problem"], "difficulty": None}
    (of_example,), (of_row,) = filtered.score([example]), filtered.score(sums(1))
    assert all(of_example[name] == of_row[name] for name in ADDED)


def test_names_that_clash_are_refused(package: TrustPackage):
    with pytest.raises(SourceError, match="rows have a column label already, which is added; rename it"):
        list(Filter.load(package).score([{**sums(1)[0], "label": "x"}]))


def test_another_teacher_is_refused_and_a_moved_one_is_found(tiny_model: ModelRef, tmp_path: Path):
    home = shutil.copytree(tiny_model.base, tmp_path / "home")
    of_model(tmp_path / "package", ModelRef(base=str(home)))
    assert Filter.load(tmp_path / "package").package.description.teacher.base == str(home)
    home.rename(tmp_path / "moved")
    with pytest.raises(PackageError, match="the base of its teacher is not at"):
        Filter.load(tmp_path / "package")
    Filter.load(tmp_path / "package", teacher=str(tmp_path / "moved"))
    (tmp_path / "moved/config.json").write_text((tmp_path / "moved/config.json").read_text() + "\n")
    with pytest.raises(PackageError, match="give the teacher that it was fitted for"):
        Filter.load(tmp_path / "package", teacher=str(tmp_path / "moved"))


def test_the_package_has_the_filter(package: TrustPackage):
    assert curation.Filter is Filter
    with pytest.raises(AttributeError, match="no attribute 'Filtre'"):
        curation.Filtre  # noqa: B018


def answers(row_ids_N: np.ndarray, states_ND: np.ndarray, failed: tuple[int, ...] = ()) -> pa.Table:
    """Labels of a teacher with these states."""
    schema = schemas.make_labels_schema(("output_last",), "float16", states_ND.shape[1])
    rows = [
        {"row_id": int(row_id), "error": "x: y" if row_id in failed else None,
         "state_output_last": None if row_id in failed else state.tolist()}
        for row_id, state in zip(row_ids_N, states_ND.astype(np.float16), strict=True)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def test_the_watch_tests_the_newest_distinct_rows():
    rng = np.random.default_rng(5)
    reference_ND = rng.normal(size=(300, 6)).astype(np.float16)
    stream_ND = rng.normal(size=(400, 6)).astype(np.float16)
    stream_ND[200:] += 2
    watch = ShiftWatch({"output_last": reference_ND}, window=150, every=100, seed=4)
    ids_N = np.arange(400)
    for start in range(0, 200, 50):
        tested = watch.add(answers(ids_N[start : start + 50], stream_ND[start : start + 50], failed=(0, 120)))
        assert (tested is not None) == (start in (100,)), start
    assert watch.last == compare_samples(reference_ND, stream_ND[[*range(1, 120), *range(121, 150)]][-150:], seed=4)
    assert not watch.last.alarm and watch.last.auc.low < 0.6
    for _ in range(20):  # rows that come again are not new
        assert watch.add(answers(ids_N[150:200], stream_ND[150:200])) is None
    watch.add(answers(ids_N[200:], stream_ND[200:]))
    assert watch.last == compare_samples(reference_ND, stream_ND[250:], seed=4)
    assert watch.last.auc.low > 0.9 and "The hidden states differ (severe" in watch.last.warning()


def test_a_stream_is_watched_as_it_is_scored(package: TrustPackage):
    filtered = Filter.load(package)
    watch = ShiftWatch(package.reference(), window=300, every=50, seed=package.description.made.seed)
    list(filtered.score(sums(220), tell=watch.add, batch_rows=64))
    assert watch.last is not None and not watch.last.alarm and watch.last.num_pool in range(50, 221)
    drifted = ShiftWatch({"output_last": package.reference()["output_last"] + direction().astype(np.float16)}, every=50)
    list(filtered.score(sums(220), tell=drifted.add))
    assert drifted.last is not None and drifted.last.alarm


def test_a_replica_answers_requests_and_emits_the_watch_s_result(
    package: TrustPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str, float, dict[str, str]]] = []

    def emit(meter: Meter, verb: str, value: float, tags: Mapping[str, str]) -> None:
        said.append((meter.name, verb, value, {name: tag for name, tag in tags.items() if name == "kind"}))

    monkeypatch.setattr("curation.telemetry.metrics._emit", emit)
    monkeypatch.setattr("curation.telemetry.metrics._start_refreshing", lambda: None)  # it sets gauges again meanwhile
    replica = Replica(package.uri, window=100, every=40)
    rows = [*sums(60), {"problem": None}, {"text": "?"}]
    asked, is_list = replica.rows_of(json.dumps(rows).encode())
    found = replica.answer(asked)
    assert is_list and found == list(Filter.load(package).score(rows))
    auc = replica.watch.last.auc
    assert said == [
        ("curation_rows_served_total", "inc", 62, {}),
        ("curation_error_rows_total", "inc", 1, {"kind": "null_field"}),
        ("curation_error_rows_total", "inc", 1, {"kind": "missing_column"}),
        ("curation_shift_auc_low", "set", auc.low, {}),
        ("curation_foreign_share_low", "set", replica.watch.last.foreign.share.low, {}),
    ]
    said.clear()
    replica.answer(asked[:3])
    assert [name for name, *_ in said] == ["curation_rows_served_total"]  # no new test
    assert replica.rows_of(json.dumps(rows[0]).encode()) == ([rows[0]], False)
    for body, why in (
        (b"{", "not JSON"),
        (b"[1]", "a row is a JSON object"),
        (json.dumps([{**rows[0], "trust": 1}]).encode(), "have the columns trust already"),
        (json.dumps([{}] * 5000).encode(), "5,000 rows are more than 4,096"),
        (json.dumps([{"problem": "x" * 2**22}]).encode(), r"4,\d{3},\d{3} bytes are more than 4,194,304"),
        (b'{"problem": %s}' % (b"[" * 32 + b"]" * 32), "nested more than 32 deep"),
        (b'{"problem": %s}' % (b'{"a":' * 900 + b"1" + b"}" * 900), "nested more than 32 deep"),
        (b"[" * 2_000_000, "nested more than 32 deep|not JSON"),
        (b'{"problem": NaN}', "NaN is not a number in JSON"),
    ):
        with pytest.raises(SourceError, match=why):
            replica.rows_of(body)


def test_rows_that_nobody_can_label_fail_their_sender_alone(package: TrustPackage):
    replica = Replica(package.uri)
    good, deep = sums(3), {"problem": "1"}
    for _ in range(900):
        deep = {"a": deep}
    first, second, third = replica.answer_each([good[:1], [deep, good[0]], good[1:]])
    assert isinstance(second, Exception)
    assert [*first, *third] == list(Filter.load(package).score(good))
    (alone,) = replica.answer_each([good])
    assert alone == [*first, *third]


def test_the_door_opens_to_those_who_have_the_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CURATION_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"CURATION_TOKEN: is empty or not set.*or let everybody in by open=true"):
        Door()
    assert Door(is_open=True).lets_in(None)
    monkeypatch.setenv("MY_TOKEN", "secret")
    door = Door("MY_TOKEN")
    assert door.lets_in("Bearer secret")
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer secre",
        "Bearer secrets",
        "secret",
        "Basic secret",
        "Bearer é",
    ):
        assert not door.lets_in(wrong)
    monkeypatch.setenv("MY_TOKEN", " ")
    with pytest.raises(ConfigError, match="MY_TOKEN"):
        Door("MY_TOKEN")


def test_a_watch_that_cannot_test_is_refused():
    with pytest.raises(ValueError, match="nothing to watch"):
        ShiftWatch({})
    for settings in ({"window": 5}, {"every": 0}):
        with pytest.raises(ValueError, match="a test needs 20 rows"):
            ShiftWatch({"output_last": np.zeros((30, 2))}, **settings)

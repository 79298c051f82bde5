"""The same question in two splits: found by what identifies it, and refused, dropped or reported, by choice."""

import itertools
import json
from pathlib import Path
from typing import Any, get_args

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.config import DomainConfig, RunConfig
from curation.domains.chess import Chess
from curation.domains.identity import Identity, Rule, match_questions, normalise_prose, plain_identity
from curation.domains.math import Math
from curation.domains.mcqa import Mcqa
from curation.errors import SourceError
from curation.pipeline.running import run_chain
from curation.refs import TableRef
from curation.sources import discover
from curation.stages import overlap
from curation.stages.prepare import PreparedRefs, SplitWriting, prepare
from curation.stages.split_tables import OverlapDecision
from curation.tables import io, schemas


def question(number: int, choices: list[str] | None = None) -> dict[str, Any]:
    """A question of its own, with four options of its own."""
    options = choices or [f"{number}{letter}" for letter in "wxyz"]
    return {"question": f"Which of these is number {number}?", "choices": options, "answer": 0}


TRUE = "Which of the following statements is true?"
SPLITS = {
    "test": [question(number) for number in range(10)],
    "calibration": [question(number) for number in range(10, 20)],
    "source": [
        *(question(number) for number in range(20, 30)),
        {"question": TRUE, "choices": ["Cats bark.", "Dogs bark.", "Fish bark.", "All of the above"], "answer": 1},
        {**question(3), "question": "which of these is  number 3 ?"},  # of test, with other spacing and case
    ],
    "pool": [
        *(question(number) for number in range(30, 40)),
        question(0),  # of test, the same
        question(1, ["1z", "1y", "1x", "1w"]),  # of test, permuted
        question(2, ["2w", "2x", "2y", "another"]),  # of test, another distractor
        question(20, ["20z", "20w", "20x", "20y"]),  # of source, permuted
        {"question": TRUE, "choices": ["2 is odd.", "3 is odd.", "4 is odd.", "All of the above"], "answer": 1},
        question(39),  # stands in the pool already
    ],
}
"""The statement that is true is another one in the pool: one option in common is no near-copy."""


def settings(
    folder: Path, mode: str, splits: dict[str, list[dict[str, Any]]] = SPLITS, domain: str = "mcqa"
) -> RunConfig:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: dict[str, Any] = {name: {"from": name} for name in splits if "probe" not in name}
    probes = {name[6:]: {"from": name, "regime": "ID"} for name in splits if "probe" in name}
    return RunConfig.model_validate(
        {
            "name": "test",
            "domain": domain,
            "sources": {name: {"path": str(folder / f"{name}.jsonl")} for name in splits},
            "splits": {**given, "probes": probes, "overlap": mode, "audit": True},
            "teacher": {"backend": "scripted"},
            "selection": {"budget": {"n": 1}, "arms": ["naive"]},
        }
    )


def run(config: RunConfig, directory: Path) -> PreparedRefs:
    files = {name: discover(source) for name, source in config.sources.items()}
    return prepare(config, directory, files, writing=SplitWriting(chunk_rows=4))


def ids(ref: TableRef) -> list[int]:
    found: list[int] = io.read(ref, columns=["row_id"])["row_id"].to_pylist()
    return found


FOUND = [
    ("test", "source", 1, {"same": 1}),
    ("test", "pool", 3, {"same": 1, "permuted": 1, "near_copy": 1}),
    ("source", "pool", 1, {"permuted": 1}),
]


@pytest.mark.usefixtures("local_ray")
def test_questions_that_source_and_pool_share_leave_the_pool_by_default(tmp_path: Path) -> None:
    splits = {"source": SPLITS["source"], "pool": SPLITS["pool"]}
    config = settings(tmp_path / "in", "refuse", splits)
    for _ in range(2):  # the second time from the list on disk
        found = run(config, tmp_path / "tables")
        assert found.overlap.dropped == {"pool": 1} and len(ids(found.tables["pool"])) == len(SPLITS["pool"]) - 1
        (pair,) = found.overlap.pairs
        assert (pair.kept, pair.other, pair.fate, pair.rules) == ("source", "pool", "dropped", {"permuted": 1})


@pytest.mark.usefixtures("local_ray")
def test_shared_questions_are_refused_dropped_or_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as refused:
        run(settings(tmp_path / "in", "refuse"), tmp_path / "refused")
    told = str(refused.value)
    assert "test and pool share questions, 3 rows of pool (1 the same, 1 with permuted options, 1 near-copies" in told
    assert "test and source share questions, 1 rows of source" in told
    assert "source and pool" not in told  # dropped and counted
    assert "row 3 of test and row 11 of source" in told and "splits.overlap: drop" in told
    assert "remove repeated rows from the input files" in told

    reported = run(settings(tmp_path / "in", "report"), tmp_path / "reported")
    pairs = [(pair.kept, pair.other, pair.rows, pair.rules) for pair in reported.overlap.pairs]
    assert pairs == FOUND and {pair.fate for pair in reported.overlap.pairs} == {"kept"}
    assert reported.overlap.dropped == {}
    assert {name: len(ids(ref)) for name, ref in reported.tables.items()} == {
        **{name: len(rows) for name, rows in SPLITS.items()},
        "audit": 16,
    }

    dropped = run(settings(tmp_path / "in", "drop"), tmp_path / "dropped")
    pairs = [(pair.kept, pair.other, pair.rows, pair.rules) for pair in dropped.overlap.pairs]
    assert pairs == FOUND and {pair.fate for pair in dropped.overlap.pairs} == {"dropped"}
    assert dropped.overlap.dropped == {"source": 1, "pool": 4}
    assert any(sentence.startswith("3 rows of pool ask questions of test") for sentence in dropped.overlap.sentences())
    assert ids(dropped.tables["pool"]) == ids(dropped.tables["audit"]) == [*range(10), 14, 15]
    assert ids(dropped.tables["source"]) == list(range(11))
    assert {name: len(ids(dropped.tables[name])) for name in ("test", "calibration")} == {"test": 10, "calibration": 10}
    assert dropped.counts["pool"].rows == 16 and dropped.counts["source"].rows == 12  # as they were read
    wanted = np.array([15, 3, 14])
    assert io.take(dropped.tables["pool"], wanted)["question"].to_pylist() == [
        SPLITS["pool"][row]["question"] for row in wanted
    ]


@pytest.mark.usefixtures("local_ray")
def test_a_drop_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    config, directory = settings(tmp_path / "in", "drop"), tmp_path / "out"
    whole = run(config, directory)
    assert run(config, directory) == whole  # nothing to do: no new version

    def back(name: str) -> None:
        """As if the run had ended before it deleted from this table."""
        lance.dataset(whole.tables[name].uri, version=whole.tables[name].version - 1).restore()
        assert len(ids(io.find_latest(whole.tables[name].uri))) == len(SPLITS["pool" if name == "audit" else name])

    def same(again: PreparedRefs) -> None:
        assert (again.overlap, again.counts) == (whole.overlap, whole.counts)
        assert all(ids(again.tables[name]) == ids(ref) for name, ref in whole.tables.items())

    back("audit")  # between pool and audit
    same(run(config, directory))
    back("pool")
    back("audit")  # source was done: found again from the tables, it would not be counted
    assert OverlapDecision.load(directory) is not None
    same(run(config, directory))
    (directory / "overlap.json").unlink()  # not a state that a run leaves: tables without rows are begun anew
    same(run(config, directory))

    more = settings(tmp_path / "in", "drop", {**SPLITS, "pool": [*SPLITS["pool"], question(4), question(50)]})
    grown = run(more, directory)  # other rows: what was settled is settled again
    assert grown.overlap.dropped == {"source": 1, "pool": 5}
    assert ids(grown.tables["pool"]) == ids(grown.tables["audit"]) == [*range(10), 14, 15, 17]
    kept = run(settings(tmp_path / "in", "report"), directory)
    assert len(ids(kept.tables["pool"])) == 16 and kept.overlap.dropped == {}


@pytest.mark.usefixtures("local_ray")
def test_a_split_that_loses_all_its_rows(tmp_path: Path) -> None:
    splits = {"test": SPLITS["test"], "source": SPLITS["test"][:4], "pool": SPLITS["calibration"]}
    with pytest.raises(SourceError, match=r"splits\.source: .* leaves none of its 4 usable rows, .* question of test;"):
        run(settings(tmp_path / "in", "drop", splits), tmp_path / "out")


@pytest.mark.usefixtures("local_ray")
def test_probes_and_test_may_share(tmp_path: Path) -> None:
    """Nothing is learned from either; of the pool both are kept clean."""
    splits = {"source": SPLITS["calibration"], "pool": [question(1), question(60)], "test": SPLITS["test"]}
    splits |= {"probe-near": [question(1), question(7), question(61)]}
    with pytest.raises(SourceError) as refused:
        run(settings(tmp_path / "in", "refuse", splits), tmp_path / "refused")
    assert "probe-near and pool" in str(refused.value) and "test and probe-near" not in str(refused.value)
    dropped = run(settings(tmp_path / "in", "drop", splits), tmp_path / "dropped")
    fates = {(pair.kept, pair.other): (pair.rows, pair.fate) for pair in dropped.overlap.pairs}
    assert fates == {
        ("test", "probe-near"): (2, "kept"),
        ("test", "pool"): (1, "dropped"),
        ("probe-near", "pool"): (1, "dropped"),
    }
    assert dropped.overlap.dropped == {"pool": 1} and len(ids(dropped.tables["probe-near"])) == 3


@pytest.mark.usefixtures("local_ray")
def test_chess_counters_and_spacing_of_mathematics(tmp_path: Path) -> None:
    after = "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq"
    splits = {
        "source": [{"fen": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "moves": "e2e4 e7e5"}],
        "calibration": [
            {"fen": f"{after} - 0 2", "moves": "g1f3 b8c6"},
            {"fen": f"{after} - 0 2", "moves": "f1c4 b8c6"},
        ],
        "pool": [{"fen": f"{after} e6 7 31", "moves": "g1f3 b8c6"}, {"fen": f"{after} - 0 2", "moves": "d2d4 b8c6"}],
    }
    with pytest.raises(
        SourceError, match=r"splits calibration and pool share questions, 1 rows of pool \(1 the same\)"
    ):
        run(settings(tmp_path / "chess", "refuse", splits, "chess"), tmp_path / "a")
    splits = {
        "source": [{"problem": "Compute 7 + 8.", "answer": "15"}],
        "calibration": [
            {"problem": r"Compute $\frac12 + x$.", "answer": "1"},
            {"problem": "Compute 2 - 3.", "answer": "2"},
        ],
        "pool": [{"problem": r"compute  \( \dfrac12+x\,\)"}, {"problem": "Compute 2 + 3.", "answer": "5"}],
    }
    with pytest.raises(
        SourceError, match=r"splits calibration and pool share questions, 1 rows of pool \(1 the same\)"
    ):
        run(settings(tmp_path / "math", "refuse", splits, "math"), tmp_path / "b")


class Nameless(Mcqa):
    """A user's domain without the member."""

    identity: Any = None


def test_rows_without_identity_are_counted_and_never_all_of_a_split(tmp_path: Path) -> None:
    rows = [{"row_id": row, **Mcqa().read(question(row)), "gold": "A", "error": None} for row in range(5)]
    rows[3] |= {"question": None, "choices": None, "error": "null_field: question"}
    schema = schemas.make_examples_schema(Mcqa.columns, gold=True)
    ref = io.write(pa.Table.from_pylist(rows, schema=schema), str(tmp_path / "source.lance"))
    (group,) = overlap.iter_fragment_groups(ref)
    part = overlap._Fragments(ref, DomainConfig(name=f"{__name__}:Nameless"), group)
    near_K, problems = overlap._collect_keys(part)
    assert len(near_K) == 0 and problems == {"domain_failed": 4}
    with pytest.raises(SourceError, match=r"splits\.source: none of its rows says what identifies its question"):
        overlap._require_some("source", problems, ref)
    overlap._require_some("source", {"domain_failed": 3}, ref)


@pytest.mark.usefixtures("local_ray")
def test_a_refused_run_goes_on_with_drop_and_never_labels_what_it_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {
        "source": [question(number) for number in range(120)],
        "pool": [*(question(number) for number in range(200, 260)), question(300, ["300z", "300w", "300x", "300y"])],
        "calibration": [question(number) for number in range(300, 320)],
    }
    config = settings(tmp_path / "in", "refuse", splits)
    small = {"depth": 1, "width": 8, "max_steps": 10}
    config = config.model_copy(
        update={"run_dir": str(tmp_path / "run"), "trust": config.trust.model_copy(update=small)}
    )
    with pytest.raises(SourceError, match="1 with permuted options"):
        run_chain(config)
    dropping = config.model_copy(update={"splits": config.splits.model_copy(update={"overlap": "drop"})})
    report = run_chain(dropping)
    assert "1 rows of pool ask questions of calibration (1 with permuted options): dropped" in capsys.readouterr().err
    (pool,) = (split for split in report["funnel"]["splits"] if split["split"] == "pool")
    assert (pool["rows"], pool["dropped"], report["generations"][0]["num_pool"]) == (61, 1, 60)
    assert report["funnel"]["generations"][0]["labelled"]["pool"]["rows"] == 60
    assert report["funnel"]["overlap"]["pairs"][0]["rules"] == {"permuted": 1}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<tr><th>pool</th><td>calibration</td>" in page and "<td>dropped</td></tr>" in page


def test_keys_are_the_rule() -> None:
    """Two rows have a key in common just where ``same_question`` says so, and the key says by which rule."""
    rng = np.random.default_rng(0)
    identities = [
        Identity(text, tuple(rng.choice([*"abcdef"], size=size, replace=bool(rng.integers(2)))))
        for text in ("one", "two")
        for size in (0, 1, 2, 3, 4, 5)
        for _ in range(12)
    ]
    digests = [overlap.Digests("mcqa", identity) for identity in identities]
    seen = set()
    for one, other in itertools.combinations(range(len(identities)), 2):
        found: Rule | None = None
        if digests[one].same() == digests[other].same():
            found = "same"
        elif digests[one].permuted() == digests[other].permuted():
            found = "permuted"
        elif set(digests[one].near()) & set(digests[other].near()):
            found = "near_copy"
        assert found == match_questions(identities[one], identities[other]), (identities[one], identities[other])
        assert found is None or set(digests[one].near()) & set(digests[other].near())
        seen.add(found)
    assert seen == {*get_args(Rule), None}
    assert not set(digests[0].near()) & set(overlap.Digests("math", identities[0]).near())


def test_pairs_equal_a_comparison_of_all_with_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    names = ["test", "calibration", "source", "pool"]
    rows = {
        name: {int(row): Identity("what", tuple(rng.choice([*"abcdefgh"], size=3, replace=False))) for row in order}
        for name, order in ((name, rng.permutation(100)[:12]) for name in names)
    }
    every = np.unique(
        np.concatenate(
            [
                overlap._to_keys(overlap.Digests("x", identity).near())["high"]
                for name in names
                for identity in rows[name].values()
            ]
        )
    )
    entries = {
        name: overlap._find_hits([(row, overlap.Digests("x", identity)) for row, identity in rows[name].items()], every)
        for name in names
    }
    found = {(pair.kept, pair.other): pair for pair in overlap._find_pairs(names, entries)}
    for one, other in itertools.combinations(names, 2):
        best: dict[int, Rule] = {}
        for row, identity in rows[other].items():
            rules = [rule for kept in rows[one].values() if (rule := match_questions(kept, identity)) is not None]
            if rules:
                best[row] = min(rules, key=get_args(Rule).index)
        pair = found[one, other]
        assert pair.row_ids_M.tolist() == sorted(best)
        assert pair.rules == {rule: number for rule in get_args(Rule) if (number := [*best.values()].count(rule))}
        kept, shown = pair.example
        assert match_questions(rows[one][kept], rows[other][shown]) == next(iter(pair.rules))


def test_what_normalisation_keeps_and_what_it_does_not() -> None:
    same = [
        ("Don\u2019t \u201cgo\u201d \u2013 why?", 'don\'t  "go" - WHY'),
        ("the sky is ____ .", "The sky is"),
        ("x\u00b2 + 1", "x^2 + 1"),
        ("H\u2082O", "h2o"),
        ("\ufb01sh", "fish"),
    ]
    assert all(normalise_prose(one) == normalise_prose(other) for one, other in same)
    other = [
        ("2+3", "2-3"),
        ("x\u00b2", "x2"),
        ("5!", "5"),
        ("f'(x)", "f(x)"),
        ("y' = 0", "y = 0"),
        ("1.5", "15"),
        ("-5", "5"),
    ]
    assert all(normalise_prose(one) != normalise_prose(two) for one, two in other)
    assert plain_identity("Cross Aa?", ["AA", "Aa", "aa"]).parts == ("AA", "Aa", "aa")
    assert plain_identity("Who?", ["A cat.", "a dog"]) == plain_identity("who", ["a cat", "A dog."])

    def problem(text: str) -> str:
        return Math().identity({"problem": text}).text

    assert problem(r"Find $\tfrac{1}{2} x$.") == problem(r"find \[\dfrac{1}{2}x\]")
    assert problem("2 3") != problem("23") and problem("x + 1") != problem("x - 1") and problem("3!") != problem("3")

    def position(fen: str) -> str:
        return Chess().identity({"fen": fen}).text

    takes = "rnbqkbnr/ppp1pppp/8/3pP3/8/8/PPPP1PPP/RNBQKBNR w KQkq"
    assert position(f"{takes} d6 0 3") != position(f"{takes} - 0 3")  # the pawn can be taken
    assert position(f"{takes} d6 0 3") == position(f"{takes} d6 4 9")
    assert position("4k3/8/8/8/8/8/8/R3K3 w Q - 0 1") != position("4k3/8/8/8/8/8/8/R3K3 w - - 0 1")
    assert position("4k3/8/8/8/8/8/8/R3K3 w - - 0 1") != position("4k3/8/8/8/8/8/8/r3K3 w - - 0 1")

"""Rows that are asked among their listed answers, from the domain to the labels."""

from dataclasses import dataclass
from typing import Any

import pytest

from curation.config import AskConfig, DecodingConfig, DomainConfig, ScriptedConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.domains.mcqa import Mcqa
from curation.errors import ConfigError
from curation.signals import Weak, get_signal, label_request, measure
from curation.stages.label_chunks import label_rows
from curation.teachers import load_teacher

FREE = DecodingConfig()
SCORED, STEPWISE = (DecodingConfig(constrained=way) for way in ("scored", "stepwise"))
CHESS = get_domain(DomainConfig(name="chess"))
QUESTION = {"question": "Which?", "choices": ["plum", "chair"]}


SCRIPTED = AskConfig(backend="scripted", states=("output_last",))


@dataclass(frozen=True)
class Asking:
    decoding: DecodingConfig
    teacher: AskConfig = SCRIPTED
    seed: int = 3


@pytest.fixture(scope="module")
def examples(puzzles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [CHESS.read(raw) | {"row_id": place, "error": None} for place, raw in enumerate(puzzles[:200])]


def labels(examples: list[dict[str, Any]], job: Asking, domain: Any = CHESS) -> dict[int, dict[str, Any]]:
    batches = label_rows(job, domain, load_teacher(job.teacher, None), examples)
    return {row["row_id"]: row for batch in batches for row in batch.to_pylist()}


def test_the_legal_moves_are_chess_candidates_by_brute_force(examples: list[dict[str, Any]]) -> None:
    """Every pair of squares, of few men with every promotion, is tried by the parser, which knows of no list."""
    squares = [f"{column}{row}" for column in "abcdefgh" for row in range(1, 9)]
    promoting = {"fen": "1n5k/P7/8/8/8/8/8/K7 w - - 0 1"}
    for example, begins, pieces in ((examples[0], squares, [""]), (promoting, ["a1", "a7", "b8"], ["", *"qrbn"])):
        moves = [f" {one}{other}{piece}" for one in begins for other in squares for piece in pieces]
        legal = {move for move in moves if CHESS.parse(move, example) is not None}
        assert set(CHESS.candidates(example) or ()) == legal and CHESS.num_answers(example) == len(legal)
    listed = CHESS.candidates(promoting) or ()
    assert {" a7a8q", " a7b8n"} < set(listed)
    assert not any(one != other and other.startswith(one) for one in listed for other in listed)


@pytest.mark.parametrize("decoding", [SCORED, STEPWISE])
def test_all_labels_are_listed_answers(examples: list[dict[str, Any]], decoding: DecodingConfig) -> None:
    free, found = (labels(examples, Asking(way)) for way in (FREE, decoding))
    assert found.keys() == free.keys() == {example["row_id"] for example in examples}
    for example in examples:
        row = found[example["row_id"]]
        assert row["completion"] in (CHESS.candidates(example) or ()) and row["label"] == row["completion"].strip()
    assert {row["completion"] for row in free.values()} == {" e2e4"}


def test_a_domain_without_a_list_is_refused_by_its_row() -> None:
    example = {"problem": "1 + 1", "row_id": 7, "error": None}
    told = (
        r"decoding.constrained: scored: domain math does not list the possible answers of row 7; .* method candidates"
    )
    with pytest.raises(ConfigError, match=told):
        labels([example], Asking(SCORED), get_domain(DomainConfig(name="math")))


def test_options_of_a_domain_are_its_candidates_and_reasoning_has_none() -> None:
    assert Mcqa().candidates(QUESTION) == (" A", " B") and Mcqa(generative=True).candidates(QUESTION) is None
    for decoding, stepwise in ((FREE, False), (SCORED, False), (STEPWISE, True)):
        request = label_request(as_asked(Mcqa(), decoding), 1, QUESTION)
        assert (request.options, request.stepwise, request.is_drawn) == ((" A", " B"), stepwise, stepwise)
    assert as_asked(Mcqa(generative=True), SCORED).num_answers(QUESTION) == 2


def test_states_of_other_options_need_scores(examples: list[dict[str, Any]]) -> None:
    ask = AskConfig(backend="scripted", states=("option2_output_last",))
    assert len(labels(examples[:5], Asking(SCORED, ask))) == 5
    for decoding in (FREE, STEPWISE):
        with pytest.raises(ConfigError, match="has no options to choose from"):
            labels(examples[:5], Asking(decoding, ask))


@pytest.mark.parametrize(("decoding", "asked"), [(FREE, 8), (SCORED, 1), (STEPWISE, 8)])
def test_self_consistency_asks_as_the_labels_were_asked(
    examples: list[dict[str, Any]], decoding: DecodingConfig, asked: int
) -> None:
    signal, domain = get_signal("self_consistency"), as_asked(CHESS, decoding)
    weak = {
        row_id: Weak(label=row["label"], completion=row["completion"])
        for row_id, row in labels(examples[:20], Asking(SCORED)).items()
    }
    assert len(signal.requests(domain, 0, examples[0], weak[0])) == asked
    rows = [(example["row_id"], example, weak[example["row_id"]]) for example in examples[:20]]
    teacher = load_teacher(AskConfig(backend="scripted", scripted=ScriptedConfig()), None)
    values = measure(signal, CHESS, teacher, rows, decoding, seed=0)
    assert all(value is not None and 0 <= value <= 1 for value in values.values())
    assert (max(values.values()) > 0) == (decoding is not FREE), "a free answer of the script is no legal move"  # type: ignore[type-var]


def test_signals_in_words_are_not_held_to_moves(examples: list[dict[str, Any]]) -> None:
    script = AskConfig(backend="scripted", scripted=ScriptedConfig(completions=(" 85%",)))
    rows = [(example["row_id"], example, Weak(label="e2e4", completion=" e2e4")) for example in examples[:5]]
    values = measure(get_signal("verbalized_confidence"), CHESS, load_teacher(script, None), rows, SCORED, seed=0)
    assert set(values.values()) == {0.85}

"""How answers name an option: decided by all labelled rows of a source, in the keys, refused where two ways fit."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from built import saved_run

from curation.commands.validate import check
from curation.config import RunConfig
from curation.config.load import load_config
from curation.domains import get_domain
from curation.domains.mcqa import LETTERS, Mcqa, read_answer
from curation.errors import ConfigError
from curation.pipeline.opened import settle
from curation.rundir.graph import with_outs
from curation.rundir.manifest import Manifest

Answer = Callable[[list[str], int], Any]
"""The answer of a row with these options, of which the one at the place is right."""


def rows(answer: Answer, *, num: int = 60, words: str = "123456789") -> list[dict[str, Any]]:
    """Rows with four options, of which each is right in a quarter; ``place`` is the right one."""
    drawn, found = random.Random(0), []
    for row in range(num):
        choices = drawn.sample(words, 4)
        found.append({"question": f"q{row}?", "choices": choices, "answer": answer(choices, row % 4), "place": row % 4})
    return found


def in_columns(listed: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**row, **dict(zip(names, row["choices"], strict=True))} for row in listed]


def golds(domain: Mcqa, labelled: list[dict[str, Any]], **options: Any) -> tuple[list[int], dict[str, Any]]:
    """The places that a domain reads once the rows have settled it, with what they settled."""
    settled = domain.settle(labelled, "source x")
    made = Mcqa(**options, **settled)
    return [LETTERS.index(made.gold(row)) for row in labelled], settled


@pytest.mark.parametrize(
    ("answer", "reading"),
    [
        (lambda choices, place: place, None),  # MMLU's: each row alone is read in this way, so that no key changes
        (lambda choices, place: str(place), "number_from_0"),
        (lambda choices, place: str(place + 1), "number_from_1"),
        (lambda choices, place: float(place + 1), "number_from_1"),
        (lambda choices, place: choices[place], "text"),
        (lambda choices, place: int(choices[place]), "text"),
        (lambda choices, place: LETTERS[place], None),
        (lambda choices, place: f"({LETTERS[place].lower()})", None),
    ],
)
def test_one_reading_for_all_rows_of_a_list_of_numbers(answer: Answer, reading: str | None):
    labelled = rows(answer)
    found, options = golds(Mcqa(), labelled)
    assert found == [row["place"] for row in labelled]
    assert options == ({} if reading is None else {"answer_is": reading})


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("names", [("opa", "opb", "opc", "opd"), ("option1", "option2", "option3", "option4")])
def test_one_reading_for_options_in_columns(names: tuple[str, ...], first: int):
    labelled = in_columns(rows(lambda choices, place: str(place + first)), names)
    found, options = golds(Mcqa(choices=names), labelled, choices=names)
    assert found == [row["place"] for row in labelled]
    named = {"column"} if first and names[0] == "option1" else {f"number_from_{first}"}
    assert {*options.values()} == named


@pytest.mark.parametrize("names", [("opt_a", "opt_b", "opt_c", "opt_d"), ("optA", "optB", "optC", "optD")])
def test_letters_at_the_end_of_columns_that_stand_in_another_order_are_refused(names: tuple[str, ...]):
    labelled = in_columns(rows(lambda choices, place: LETTERS[place]), names)
    assert golds(Mcqa(choices=names), labelled, choices=names) == ([row["place"] for row in labelled], {})
    turned = names[::-1]
    with pytest.raises(ConfigError, match="read in two ways: as column in 60 of 60 rows, as letter in 60"):
        Mcqa(choices=turned).settle(labelled, "source x")
    assert Mcqa(choices=turned, answer_is="column").gold(labelled[0] | {"answer": "A"}) == "D"


@pytest.mark.parametrize(
    ("answer", "words", "ways"),
    [
        (lambda choices, place: choices[place], "ABCD", ("letter", "text")),
        (lambda choices, place: choices[place], "1234", ("text", "number_from_1")),
        (lambda choices, place: place or 1, "pqrstuvw", ("number_from_0", "number_from_1")),
    ],
)
def test_two_ways_are_refused_with_both_and_the_key(answer: Answer, words: str, ways: tuple[str, str]):
    labelled = rows(answer, words=words)
    with pytest.raises(ConfigError) as caught:
        Mcqa().settle(labelled, "source x")
    told = str(caught.value)
    assert told.startswith(f"domain.answer_is: the answers of source x are read in two ways: as {ways[0]} in 60 of 60")
    assert told.endswith(f"set domain.answer_is to the one that is meant, {ways[0]} or {ways[1]}")
    for way in ways:
        assert Mcqa(answer_is=way).gold(labelled[1]) == LETTERS[read_answer(Mcqa()._read_row(labelled[1]), way)]


def test_a_zero_that_marks_a_missing_answer_does_not_say_that_numbers_count_from_0():
    labelled = rows(lambda choices, place: place or 1, num=400, words="pqrstuvw")
    labelled[7]["answer"] = 0
    with pytest.raises(ConfigError, match="number_from_0 or number_from_1"):
        Mcqa().settle(labelled, "source x")
    with pytest.raises(ConfigError, match="number_from_0 or number_from_1"):
        Mcqa().settle(labelled[:5], "source x")


def configured(folder: Path, answers: dict[str, Answer], **domain: Any) -> RunConfig:
    """A run whose splits ``source`` and ``test`` are files with these answers."""
    sources: dict[str, Any] = {"pool": {"path": "pool.jsonl"}}
    for name, answer in {"pool": lambda choices, place: None, **answers}.items():
        lines = (json.dumps({**row, "question": f"{name} {row['question']}"}) for row in rows(answer, num=20))
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        sources[name] = {"path": f"{name}.jsonl"}
    config = {
        "name": "run",
        "run_dir": str(folder / "runs"),
        "domain": {"name": "mcqa", **domain},
        "sources": sources,
        "splits": {name: {"from": name} for name in sources},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 2}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return load_config(folder / "run.yaml")


def test_a_run_keeps_how_its_rows_are_read(tmp_path: Path):
    config = configured(tmp_path, {"source": lambda choices, place: str(place + 1), "test": lambda c, place: c[place]})
    opened = saved_run(config)
    assert [opened.config.domain_of(split).options for split in ("source", "pool", "test")] == [
        {"answer_is": "number_from_1"},
        {"answer_is": "number_from_1"},
        {"answer_is": "text"},
    ]
    stages = {stage.name: with_outs(dict(stage.inputs), str) for stage in opened.stages}
    assert "number_from_1" in str(stages["prepare"]) and "'text'" in str(stages["prepare"])
    for name in ("source", "test"):
        (tmp_path / f"{name}.jsonl").write_text("")
    assert settle(config) == opened.config, "as the run began, and no file is read"
    assert Manifest.load(config.directory).identity["domain"]["answer_is"] == "number_from_1"


def test_what_the_configuration_says_is_not_decided_and_a_doubt_ends_validate(tmp_path: Path):
    doubtful = {"source": lambda choices, place: place or 1}
    with pytest.raises(ConfigError, match=r"domain.answer_is: the answers of source source .* number_from_1"):
        list(check(configured(tmp_path, doubtful)))
    config = configured(tmp_path, doubtful, answer_is="number_from_1")
    assert settle(config) == config
    assert get_domain(config.domain).gold({"question": "q", "choices": ["x", "y"], "answer": "2"}) == "B"
    for wrong in ("number", "column"):
        with pytest.raises(
            ConfigError,
            match=r"answer_is: ('number': Input should be|column is for rows)",
        ):
            get_domain(config.domain.with_options(answer_is=wrong))


def test_files_in_which_each_row_alone_is_read_alike_change_no_key(tmp_path: Path):
    for answer in (lambda choices, place: place, lambda choices, place: LETTERS[place]):
        config = configured(tmp_path, {"source": answer, "test": answer})
        assert settle(config) == config

"""The length stage: the rows that are out, against transformers' own tokenizer asked row by row."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from curation.config import DomainConfig
from curation.domains.chess import Chess
from curation.errors import ModelError, SourceError
from curation.models import load_tokenizer, resolve
from curation.refs import ModelRef, TableRef
from curation.stages import gold as stage
from curation.stages.gold import Limit, MeasureLength, TooLong, find_too_long
from curation.tables import io, schemas
from train.tokens import Pair, tokenize

NUM_ROWS, NUM_ERRORS, LIMIT = 700, 40, 38
CHESS = DomainConfig(name="chess")
TEMPLATE = (
    "{{ '<eos>' }}{% for message in messages %}{{ message['content'] + 'White: ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'White: Black: ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def student(tiny_model: ModelRef, tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    """A tokenizer with a chat template, which puts a special token before a text and the end token behind it."""
    path = tmp_path_factory.mktemp("models") / "chat"
    shutil.copytree(tiny_model.base, path)
    tokenizer = load_tokenizer(tiny_model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A <eos>",
        special_tokens=[(word, tokenizer.convert_tokens_to_ids(word)) for word in ("<unk>", "<eos>")],
    )
    tokenizer.save_pretrained(path)
    return resolve(str(path))


def save(folder: Path, name: str, table: pa.Table) -> TableRef:
    """In a random order, in several fragments."""
    order = np.random.default_rng(len(name)).permutation(table.num_rows)
    uri = str(folder / f"{name}.lance")
    lance.write_dataset(table.take(order), uri, max_rows_per_file=300)
    return io.find_latest(uri)


class Case:
    """A pool of which a part is labelled, weak completions of many lengths, and gold answers of some rows."""

    def __init__(self, folder: Path, puzzles: list[dict], student: ModelRef) -> None:
        domain, rng = Chess(), np.random.default_rng(3)
        ids = (rng.permutation(len(puzzles)) * 1_000_003).tolist()
        self.examples = {
            row_id: {"row_id": row_id, **domain.read(row)} for row_id, row in zip(ids, puzzles, strict=True)
        }
        labelled = ids[:NUM_ROWS]
        self.weak = {row_id: " e2e4" * int(rng.integers(0, 9)) for row_id in labelled}
        failed = set(labelled[:NUM_ERRORS])
        self.golds = {
            row_id: None if rng.random() < 0.2 else " ".join(["e2e4"] * int(rng.integers(1, 6))) for row_id in ids[50:]
        }
        labels = {
            "row_id": labelled,
            "completion": [None if row_id in failed else self.weak[row_id] for row_id in labelled],
            "error": ["teacher_failed: x" if row_id in failed else None for row_id in labelled],
        }
        for row_id in failed:
            del self.weak[row_id]
        pool = pa.Table.from_pylist(
            [{**example, "error": None} for example in self.examples.values()],
            schema=schemas.make_examples_schema(domain.columns, gold=False),
        )
        self.solutions = {row_id: " e2e4" * 40 for row_id, gold in self.golds.items() if gold is not None}
        audit = [
            {"row_id": row_id, "gold": gold, "solution": self.solutions.get(row_id)}
            for row_id, gold in self.golds.items()
        ]
        gold = pa.Table.from_pylist(audit, schema=schemas.AUDIT)
        self.folder, self.student = folder, student
        self.refs = {
            "examples": save(folder, "pool", pool),
            "labels": save(folder, "labels", pa.table(labels)),
            "gold": save(folder, "audit", gold),
        }

    def measure(
        self, name: str, *, gold: bool = True, weak: bool = True, solutions: bool = False, **limit: Any
    ) -> TooLong:
        of = Limit(**{"student": self.student, "max_length": LIMIT, "chat_template": False, **limit})
        refs = self.refs if gold else {**self.refs, "gold": None}
        job = MeasureLength(name=name, weak=weak, domain=CHESS, limit=of, rollouts=None, split="pool", **refs)
        return find_too_long(job, str(self.folder / f"{name}.lance"), solutions=solutions)

    def lengths(self, *, chat_template: bool) -> dict[int, tuple[int, int]]:
        """Tokens of a row with its weak and its gold completion, 0 without one: transformers, one text at a time."""
        tokenizer = AutoTokenizer.from_pretrained(self.student.base)
        found = {}
        for row_id, weak in self.weak.items():
            prompt = Chess().prompt(self.examples[row_id])
            if chat_template:
                turn = [{"role": "user", "content": prompt}]
                ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
            else:
                ids = tokenizer(prompt)["input_ids"]
                assert ids[-1] == tokenizer.eos_token_id
                ids = ids[:-1]  # the completion goes on where the prompt ends
            gold = self.golds.get(row_id)
            texts = (weak, None if gold is None else f" {gold}")
            found[row_id] = tuple(
                0 if text is None else len(ids) + len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
                for text in texts
            )
        return found


@pytest.fixture(scope="module")
def case(student: ModelRef, puzzles: list[dict], tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("length"), puzzles, student)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("chat_template", [False, True])
def test_rows_that_are_out_are_those_of_transformers_itself(
    case: Case, chat_template: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "ROWS", 150)  # some tasks, whose rows lie in several fragments
    found = case.measure(f"both-{chat_template}", chat_template=chat_template)
    assert found.num_gold_only == found.num_too_long - found.num_weak > 0
    lengths = case.lengths(chat_template=chat_template)
    expected = {
        row_id: (weak > LIMIT, gold > LIMIT) for row_id, (weak, gold) in lengths.items() if max(weak, gold) > LIMIT
    }
    table = io.read(found.table)
    assert table.schema.equals(schemas.TOO_LONG)
    rows = {row["row_id"]: (row["weak"], row["gold"]) for row in table.to_pylist()}
    assert rows == expected and table["row_id"].to_pylist() == sorted(expected)
    assert {(True, False), (False, True), (True, True)} == set(expected.values())
    assert found.num_rows == len(lengths) == NUM_ROWS - NUM_ERRORS and 50 < found.num_too_long == len(expected) < 600
    assert found.num_weak == sum(weak for weak, _ in expected.values())
    assert found.num_gold == sum(gold for _, gold in expected.values())


@pytest.mark.usefixtures("local_ray")
def test_only_what_an_arm_trains_on_is_counted_and_training_drops_the_same(case: Case) -> None:
    lengths = case.lengths(chat_template=False)
    weak_alone, gold_alone = case.measure("weak", gold=False), case.measure("gold", weak=False)
    for found, place in ((weak_alone, 0), (gold_alone, 1)):
        out = {row_id for row_id, tokens in lengths.items() if tokens[place] > LIMIT}
        assert set(io.read(found.table)["row_id"].to_pylist()) == out
    # Worked solutions count where gold arms train on them, and only there.
    solved = case.measure("solutions", weak=False, solutions=True)
    assert solved.num_gold == len(case.solutions.keys() & case.weak.keys()) > gold_alone.num_gold
    row_id = next(iter(case.weak))
    prompt, limit = (
        Chess().prompt(case.examples[row_id]),
        Limit(student=case.student, max_length=0, chat_template=False),
    )
    tokens = lengths[row_id][0]
    assert replace(limit, max_length=tokens).allows(prompt, case.weak[row_id])
    assert not replace(limit, max_length=tokens - 1).allows(prompt, case.weak[row_id])
    pairs = [Pair(Chess().prompt(case.examples[row_id]), weak) for row_id, weak in case.weak.items()]
    kept = tokenize(load_tokenizer(case.student), pairs, LIMIT)
    assert len(pairs) - len(kept) == weak_alone.num_too_long
    again = case.measure("weak", gold=False)  # a stage that was cut off counts anew
    assert io.read(again.table).equals(io.read(weak_alone.table))
    longest = max(max(tokens) for tokens in lengths.values())
    fitting = case.measure("none", max_length=longest)
    assert (fitting.num_too_long, io.count(fitting.table)) == (0, 0)
    assert case.measure("one", max_length=longest - 1).num_too_long > 0


@pytest.mark.usefixtures("local_ray")
def test_a_limit_that_no_row_meets_is_refused_with_the_least_that_would_do(case: Case, tiny_model: ModelRef) -> None:
    lengths = case.lengths(chat_template=False)
    shortest = min(max(tokens) for tokens in lengths.values())
    with pytest.raises(SourceError) as caught:
        case.measure("all", max_length=shortest - 1)
    text = str(caught.value)
    assert f"student.max_length: all {len(lengths):,} labelled rows of the pool split" in text
    assert f"more than {shortest - 1} tokens" in text and f"the shortest needs {shortest}: raise" in text
    assert case.measure("some", max_length=shortest).num_too_long < len(lengths)
    with pytest.raises(ModelError, match=r"^chat_template: true needs a tokenizer with a chat template"):
        case.measure("template", student=tiny_model, chat_template=True)  # met by a task, told as it is

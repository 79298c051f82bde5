"""The domain of ``docs/extending.md``, taken out of the page and run."""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from curation.config import AskConfig, DecodingConfig, DomainConfig, TeacherConfig
from curation.config.inputs import DomainTraits
from curation.domains import Domain, get_domain, plain_identity
from curation.domains.grading import grade_pairs
from curation.errors import ConfigError, RowError
from curation.registry import ENTRY_POINTS, find_installed
from curation.stages.label_chunks import label_rows
from curation.teachers import load_teacher

SECTION = (Path(__file__).parents[3] / "docs" / "extending.md").read_text().split("\n## ")[1]
BLOCKS = dict(reversed(re.findall(r"^```(\w+)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)))
CONFIG = yaml.safe_load(BLOCKS["yaml"])["domain"]
ROWS = [
    {"text": "The soup was warm and good.", "label": "positive"},
    {"text": " A long wait, and the tea was cold.\n", "label": "negative"},
]


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the page's module, under the name that the page's configuration gives it."""
    name = CONFIG["name"].partition(":")[0]
    (tmp_path / f"{name}.py").write_text(BLOCKS["python"])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(name, None)


@pytest.fixture
def domain(own_module: Path) -> Domain:
    return get_domain(DomainConfig.model_validate(CONFIG))


def test_the_own_domain_of_the_page_is_fifteen_lines():
    assert sum(bool(line.strip()) for line in BLOCKS["python"].splitlines()) <= 15


class Mood(Domain):
    """The least that classifies: a question and its options."""

    def question(self, example: Any) -> str:
        return f"Review: {example['text']}\nMood:"

    def options(self, example: Any) -> tuple[str, ...]:
        return " good", " bad"


class Echo(Domain):
    """Nothing but defaults."""


@dataclass(frozen=True)
class Asking:
    """How the rows are labelled."""

    teacher: AskConfig
    decoding: DecodingConfig
    seed: int = 3


def test_a_domain_of_two_methods_is_labelled_and_graded():
    domain, raws = Mood(), [{"text": f" meal {n} ", "label": ("good", "bad")[n % 2]} for n in range(40)]
    assert (domain.name, domain.forms) == ("mood", (("text",),))
    examples = [domain.read(raw) | {"row_id": n, "error": None} for n, raw in enumerate(raws)]
    job = Asking(
        TeacherConfig(backend="scripted", scripted={"completions": [" good", " bad", " none"]}), DecodingConfig()
    )
    batches = label_rows(job, domain, load_teacher(job.teacher, None), examples)
    labels = pa.Table.from_batches(batches).sort_by("row_id")
    assert labels.num_rows == 40 and labels["error"].null_count == 40
    assert set(labels["label"].to_pylist()) == {"good", "bad"} and labels["option_logprobs"].null_count == 0
    right_N, problems = grade_pairs(labels["label"].combine_chunks(), pa.array(map(domain.gold, raws)), domain)
    written = labels["completion"].to_pylist()
    assert right_N.tolist() == [f" {raw['label']}" == text for raw, text in zip(raws, written, strict=True)]
    assert not any(problems) and 0 < right_N.sum() < 40
    shots = [examples[1] | {"gold": "bad"}]
    assert domain.prompt(examples[0], shots=shots) == "Review: meal 1\nMood: bad\n\nReview: meal 0\nMood:"


def test_a_domain_may_be_nothing_but_defaults():
    domain = Echo()
    assert domain.name == "echo" and domain.traits({}) == DomainTraits()
    example = domain.read({"text": " two "})
    assert domain.prompt(example) == "two" and domain.parse(" 2\n", example) == "2"


def test_defaults_and_ways_of_answering_stand_at_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_terse.py").write_text(
        "from curation.domains import Domain\n\nclass Terse(Domain):\n    answering = 'written'\n"
        "    defaults = {'teacher': {'decoding': {'max_tokens': 3}}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = DomainConfig(name="own_terse:Terse").traits
    assert found.defaults == {"teacher": {"decoding": {"max_tokens": 3}}}
    assert found.generates and not found.lists_answers and not found.reasons
    assert DomainConfig(name="mcqa", generative=True).traits.reasons
    assert DomainConfig(name="mcqa").traits.answering == "scored"


def test_a_domain_has_the_columns_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_least.py").write_text(
        "import pyarrow as pa\nfrom curation.domains import Domain\n\n"
        "class Least(Domain):\n    name = 'least'\n    columns = pa.schema([('a', pa.string()), ('b', pa.int64())])\n"
        "    def prompt(self, example, *, shots=()):\n        return f\"{example['a']} {example['b']}:\"\n\n"
        "class Asks:\n    def prompt(self, example, *, shots=()): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    domain = get_domain(DomainConfig(name="own_least:Least"))
    assert domain.forms == (("a", "b"),)
    example = domain.read({"a": " x ", "b": 0, "label": 7})
    assert example == {"a": "x", "b": 0} and domain.gold({"a": "x", "label": 7}) == "7"
    with pytest.raises(RowError, match=r"^null_field: b is empty$"):
        domain.read({"a": "x", "b": None})
    assert domain.identity(example) == plain_identity("x 0:")
    assert domain.options(example) is domain.candidates(example) is domain.num_answers(example) is None
    assert domain.parse(domain.answer("7", example), example) == "7" and domain.parse(" \n", example) is None
    with pytest.raises(
        ConfigError,
        match=r"'own_least:Asks' is not a domain: it does not derive from "
        r"curation.domains.D",
    ):
        get_domain(DomainConfig(name="own_least:Asks"))


def test_the_own_domain_reads_renders_and_grades_rows(domain: Domain):
    for raw in ROWS:
        seen, gold = domain.read(raw), domain.gold(raw)
        assert pa.Table.from_pylist([seen], schema=domain.columns).to_pylist() == [seen]
        assert domain.prompt(seen) == f"Text: {raw['text'].strip()}\nLabel:"
        assert domain.options(seen) == (" negative", " positive")
        labels = [domain.parse(option, seen) for option in domain.options(seen)]
        assert labels == CONFIG["labels"] and [domain.answer(label, seen) for label in labels] == [
            *domain.options(seen)
        ]
        assert [label for label in labels if domain.is_correct(label, gold)] == [raw["label"]]
        assert domain.read({"text": raw["text"]}) == seen and domain.gold({"text": raw["text"]}) is None
        assert domain.difficulty(seen) is None
        assert set(domain.prompt(seen) + domain.answer(gold, seen)) <= set(domain.vocabulary().words)
    shot = domain.read(ROWS[1]) | {"gold": "negative"}
    asked = domain.read(ROWS[0])
    assert domain.prompt(asked, shots=[shot]) == f"{domain.prompt(shot)} negative\n\n{domain.prompt(asked)}"


def test_the_own_domain_refuses_bad_rows_and_reads_nothing_into_nonsense(domain: Domain):
    for text in (None, ""):
        with pytest.raises(RowError, match="null_field"):
            domain.read({"text": text})
    with pytest.raises(RowError, match="bad_label"):
        domain.gold({"text": "x", "label": "neutral"})
    for completion in ("", "neutral", "negative or positive"):
        assert domain.parse(completion, domain.read(ROWS[0])) is None
    assert not domain.is_correct(None, "negative")


def test_an_own_domain_without_its_options_is_refused(own_module: Path):
    with pytest.raises(ConfigError, match="labels"):
        get_domain(DomainConfig(name=CONFIG["name"]))


def test_an_own_domain_is_found_by_its_entry_point(own_module: Path):
    points = tomllib.loads(BLOCKS["toml"])["project"]["entry-points"]
    (name,) = points[ENTRY_POINTS]
    info = own_module / "own_texts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-texts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{name} = {points[ENTRY_POINTS][name]}\n")
    find_installed.cache_clear()
    found = get_domain(DomainConfig.model_validate(CONFIG | {"name": name}))
    find_installed.cache_clear()
    assert f"{type(found).__module__}:{type(found).__name__}" == CONFIG["name"]
    assert f"domain: {{name: {name}," in SECTION


class Unread(Mood):
    """Its blank lacks a column that its options read."""

    blanks = ({"text": "N/A"},)

    def options(self, example: Any) -> tuple[str, ...]:
        return tuple(example["choices"].split(";"))


class Unasked(Mood):
    """Its blank has no options."""

    blanks = ({"text": "N/A"},)

    def options(self, example: Any) -> None:
        return None


def test_blanks_that_the_domain_cannot_read_are_refused():
    for name, why in (("Unread", "KeyError: 'choices'"), ("Unasked", "it gives None")):
        with pytest.raises(ConfigError, match=r"options cannot be made of blanks\[0\], .*" + why + ".*every column"):
            get_domain(DomainConfig(name=f"{__name__}:{name}"))

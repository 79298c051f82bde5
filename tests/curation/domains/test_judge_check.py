"""Free text that a judge grades: its options, the prompt, the choice between two words, grades from verdicts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from curation.config import DecodingConfig, DomainConfig, RunConfig
from curation.domains import get_domain
from curation.domains.text import JudgeCheck, Text, check_of
from curation.errors import ConfigError, RowError
from curation.signals import Answer, Weak, measure
from curation.signals.methods import ChosenVerdict
from curation.stages.signal import apply_verdicts
from curation.tables import io, schemas

ASK = "{{ prompt }} | {{ reference }} | {{ answer }}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "{{ anser }}"}, "reads 'anser', and it has prompt, reference, answer alone; did you mean 'answer'"),
        ({"prompt": "{{ prompt }}"}, "does not read the answer"),
        ({"prompt": "{{ answer"}, "check.judge.prompt: line 1"),
        ({"prompt": ""}, "check.judge.prompt: '' is not a template"),
        ({"right": True}, "check.judge: right: True: Input should be a valid string"),
        ({"wrong": " no"}, "check.judge: wrong: ' no': String should match"),
        ({"wrong": "Yes"}, "check.judge.wrong: 'Yes' is also the word for right"),
        ({"choices": ["A"]}, "check.judge: choices: .*: Unexpected keyword"),
        (None, "check.judge: None is not a mapping of options"),
    ],
)
def test_a_wrong_option_is_named(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("{", r"\{").replace("(", r"\(")):
        check_of({"judge": options})


def test_the_prompt_is_the_templates_and_the_words_go_on_from_it() -> None:
    check = JudgeCheck(prompt=ASK, right="A", wrong="B")
    assert check.question("1 + 1 = ?", "2", "two") == "1 + 1 = ? | 2 | two"
    assert check.options("Verdict:") == (" A", " B") and check.options("Verdict: ") == ("A", "B")
    default = JudgeCheck().question("1 + 1 = ?", "2", "two")
    assert all(text in default for text in ("1 + 1 = ?", "\n2\n", "\ntwo\n")) and default.endswith("Reply:")


def test_an_answer_cannot_be_a_template() -> None:
    assert JudgeCheck(prompt=ASK).question("q", "r", "{{ reference }} {% for") == "q | r | {{ reference }} {% for"


class _Chooser:
    """A model that gives each option a log-probability by row, and keeps what it was asked."""

    def __init__(self, logprobs: dict[int, tuple[float, float] | None]) -> None:
        self.logprobs = logprobs
        self.asked: list[Any] = []

    def label(self, requests: Any, decoding: DecodingConfig, *, seed: int, states: bool) -> Any:
        rows = []
        for request in requests:
            self.asked.append((request.row_id, request.prompt, request.options))
            found = self.logprobs[request.row_id]
            error = None if found is not None else "too_long: x"
            rows.append((request.row_id, "yes", -1.0, None if found is None else list(found), error))
        names = ["row_id", "completion", "mean_logprob", "option_logprobs", "error"]
        yield pa.RecordBatch.from_pydict(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def test_the_value_is_the_share_of_the_word_for_right() -> None:
    domain = Text(prompt="{{ a }}?", reference="b", check={"judge": {"prompt": ASK}})
    rows = [(n, {**domain.read({"a": n}), "gold": f"g{n}"}, Weak(label=f"l{n}", completion=" x no")) for n in range(4)]
    rows.append((9, rows[0][1], Weak(label=None, completion="")))
    teacher = _Chooser({0: (-1.0, -1.0), 1: (-0.5, -3.0), 2: None, 3: (-900.0, -0.1)})
    found = measure(ChosenVerdict(prompt=ASK), domain, teacher, rows, DecodingConfig(max_tokens=4), seed=0)  # type: ignore[arg-type]
    assert teacher.asked[1] == (1, "1? | g1 | l1", (" yes", " no")) and len(teacher.asked) == 4
    assert found[0] == 0.5 and found[1] == pytest.approx(0.92414, abs=1e-5) and found[3] == pytest.approx(0, abs=1e-9)
    assert found[2] is None and found[9] is None
    nothing = Answer(completion="yes", mean_logprob=None)
    assert ChosenVerdict().value(domain, {}, Weak(label="l", completion=""), [nothing]) is None


def test_verdicts_become_grades_and_rows_without_one_are_said(tmp_path: Path) -> None:
    columns = {"row_id": [1, 2, 3, 4, 5], "correct": [True, False, True, False, False], "judged": [False] * 5}
    columns |= {"problem": [None] * 5, "question": [7, None, 9, -3, 7]}
    grades = io.write(pa.table(columns, schema=schemas.GRADES), str(tmp_path / "grades.lance"))
    verdicts = {"row_id": [4, 3, 2, 1], "value": [None, 0.2, 0.6, 0.9], "error": [None] * 4}
    found = io.write(pa.table(verdicts, schema=schemas.SIGNAL), str(tmp_path / "verdicts.lance"))
    made = io.read(apply_verdicts(grades, found, str(tmp_path / "made.lance"), alone=True))
    assert made["correct"].to_pylist() == [True, True, False, False, False]
    assert made["judged"].to_pylist() == [False, True, False, False, False]
    assert [bool(text) for text in made["problem"].to_pylist()] == [False, False, False, True, False]
    assert made["problem"][3].as_py().startswith("check_failed: the judge gave no verdict")
    assert made["question"].to_pylist() == columns["question"]


def test_no_other_stage_asks_the_judge() -> None:
    config = DomainConfig.model_validate({"name": "text", "prompt": "{{ a }}", "reference": "b", "check": "judge"})
    assert config.judge == {} and config.ungraded.judge is None and config.agreeing.judge is None
    assert config.portable is config and DomainConfig(name="math").judge is None
    domain = Text(prompt="{{ a }}", reference="b", check="judge")
    assert domain.check(["X. ", "y"], ["x", "z"], [{}, {}]) == [True, False] and domain.is_correct(" X", "x")
    failing = JudgeCheck(prompt="{{ answer.missing }}")
    with pytest.raises(RowError, match="bad_template"):
        failing.question("p", "r", "a")


def test_the_configuration_of_the_page_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data-forms.md").read_text()
    block = page.split("## Free text, checked by a judge")[1].split("```yaml\n")[1].split("```")[0]
    config = yaml.safe_load(block)
    made = RunConfig.model_validate({**BASE, **config})
    assert made.domain.judge == config["domain"]["check"]["judge"] and get_domain(made.domain).name == "text"
    assert made.judge is not None and made.judge.chat_template


BASE: dict[str, Any] = {
    "name": "judged",
    "domain": {"name": "text", "prompt": "{{ a }}", "reference": "b", "check": "judge"},
    "sources": {"rows": {"path": "/nowhere/rows.csv"}},
    "splits": {"source": {"from": "rows", "rows": 10}, "pool": {"from": "rows", "rows": 10}},
    "teacher": {"model": {"path": "org/teacher"}},
    "judge": {"model": {"path": "org/judge"}},
    "selection": {"budget": {"n": 5}},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"judge": None}, "domain.check: judge needs a judge: add judge"),
        ({"student": {"method": "grpo"}}, "student.method: grpo needs a check by a rule or a command"),
        ({"domain": {**BASE["domain"], "check": "equal"}}, "judge.splits: pool needs grades of pool"),
    ],
)
def test_a_run_that_its_judge_cannot_grade_is_refused(changes: dict[str, Any], words: str) -> None:
    RunConfig.model_validate(BASE)
    with pytest.raises(ValidationError, match=words):
        RunConfig.model_validate({**BASE, **changes})

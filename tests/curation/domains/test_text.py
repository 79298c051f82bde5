"""Free text by configuration: options, reading, and the checks by rule."""

import json
from pathlib import Path

import pytest

from curation.config import DomainConfig
from curation.domains import attempt, get_domain
from curation.domains.text import Text
from curation.errors import ConfigError, RowError
from curation.registry import DOMAINS
from curation.rundir.graph import to_plain_json
from train.rollouts import RolloutTask, grade

PROMPT = "{{ a }} plus {{ b }}?"


def domain(check: object = "equal") -> Text:
    return Text(prompt=PROMPT, reference="sum", check=check)


def test_a_row_becomes_a_prompt_and_its_reference() -> None:
    config = DomainConfig.model_validate({"name": "text", "prompt": PROMPT, "reference": "sum"})
    made = get_domain(config)
    raw = {"a": 3, "b": 4, "sum": 7.0, "note": "never stored"}
    example = made.read(raw)
    assert made.forms == (("a", "b"),) and "text" in DOMAINS
    assert made.prompt(example) == "3 plus 4?" and json.loads(example["fields"]) == {"a": 3, "b": 4}
    assert made.gold(raw) == "7" and made.gold({**raw, "sum": None}) is None
    assert made.gold({"sum": {"k": [1]}}) == '{"k": [1]}' and made.gold({"sum": True}) == "true"
    assert made.gold({"sum": {"ort": "K\xf6ln"}}) == '{"ort": "K\xf6ln"}'
    assert made.parse("  7 \n", example) == "7" and made.parse(" ", example) is None
    shot = {**made.read({"a": 1, "b": 2}), "gold": "3"}
    assert made.prompt(example, shots=[shot]) == "1 plus 2? 3\n\n3 plus 4?"
    assert attempt(made.read, {**raw, "a": None})[1].startswith("null_field")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "{{ sum }}?"}, "the teacher would see it"),
        ({"prompt": "{{ a"}, "domain.prompt: line 1"),
        ({"check": "fuzzy"}, "none of equal, normalised, number, json, judge, command"),
        ({"check": {"number": {"tolerance": 1}}}, "check.number: tolerance: 1: Unexpected keyword"),
        ({"check": {"number": {"relative": -1}}}, "check.number: relative: -1"),
        ({"check": {"json": {"fields": "a"}}}, "check.json: "),
        ({"check": {"command": "python check.py"}}, "check.command: command: 'python check.py'"),
        ({"check": {"command": ["python"], "seconds": 0}}, "check.command: seconds: 0"),
        ({"check": {"command": ["python"], "batch_rows": 0}}, "check.command: batch_rows: 0"),
        ({"check": {"command": ["python"], "shell": True}}, "check.command: shell: True: Unexpected keyword"),
        ({"reference": ""}, "reference: ''"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Text(**{"prompt": PROMPT, "reference": "sum", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "completion", "reference", "right"),
    [
        ("equal", " Paris ", "Paris", True),
        ("equal", "paris", "Paris", False),
        ("normalised", "“Paris”, France.", "paris, france", True),
        ("normalised", "2+3", "2-3", False),
        ("number", "So it is 1,234.", "1234", True),
        ("number", "3 apples and 4 pears: 7", "7.0", True),
        ("number", "7 is right, not 8", "7", False),
        ("number", "minus \N{MINUS SIGN}7", "-7", True),
        ("number", "seven", "7", False),
        ({"number": {"absolute": 0.5}}, "7.5", "7", True),
        ({"number": {"absolute": 0.5}}, "7.51", "7", False),
        ({"number": {"relative": 0.01}}, "101", "100", True),
        ({"number": {"relative": 0.01}}, "101.1", "100", False),
        ({"number": {"relative": 0.01}}, "0.001", "0", False),
        ("number", "1e9999", "2", False),
        ("number", "about .5", "0.5", True),
        ("number", ".5", "5", False),
        ("number", "-0.5", "-.5", True),
        ("number", "between 3-5", "5", True),
        ("number", "x=-5", "-5", True),
        ("number", "1,2,3", "3", True),
        ("equal", "caf\xe9", "cafe\u0301", True),
        ("equal", "cafe", "cafe\u0301", False),
        ("json", '{"b": [1.0, true], "a": null}', '{"a": null, "b": [1, true]}', True),
        ("json", "[1]", "[true]", False),
        ("json", 'here:\n```json\n{"a": 1}\n```', '{"a": 1}', True),
        ("json", "no json", "{}", False),
        ("json", "[" * 100_000, "{}", False),
    ],
)
def test_the_rules(check: object, completion: str, reference: str, right: bool) -> None:
    made = domain(check)
    assert made.is_correct(completion, reference) is right
    assert made.check([completion, None], [reference] * 2, [{}, {}]) == [right, False]


@pytest.mark.parametrize(("check", "reference"), [("number", "seven"), ("json", "{")])
def test_a_reference_that_the_rule_cannot_read_is_an_error_row(check: object, reference: str) -> None:
    (verdict,) = domain(check).check(["7"], [reference], [{}])
    assert isinstance(verdict, RowError) and verdict.kind == "bad_reference"
    assert attempt(domain(check).is_correct, "7", reference)[1].startswith("bad_reference")


def test_the_parts_of_a_configuration_that_grade() -> None:
    check = {"command": ["python", "check.py"], "seconds": 5}
    config = DomainConfig.model_validate({"name": "text", "prompt": PROMPT, "reference": "sum", "check": check})
    assert config.command == ["python", "check.py"]
    assert config.ungraded.options == {"prompt": PROMPT, "reference": "sum"}
    assert config.portable.options["check"] == "command" and config.portable.command is None
    assert config.agreeing.options["check"] == "normalised"
    moved = {"command": ["python", "/elsewhere/check.py"], "seconds": 9, "batch_rows": 7}
    words = [
        config.with_options(check={**check, "command": ["python", "/here/check.py"]}),
        DomainConfig(**config.options | {"check": moved}, name="text"),
    ]
    assert to_plain_json(words[0], {}) == to_plain_json(words[1], {}) and "seconds" not in str(
        to_plain_json(words[0], {})
    )
    other = DomainConfig(name="chess")
    assert other.ungraded is other.portable is other.agreeing is other.keyed is other and other.command is None
    with pytest.raises(ConfigError, match="a trust package brings none"):
        get_domain(config.portable).check(["1"], ["1"], [{"fields": "{}"}])


def test_two_answers_agree_without_running_a_command() -> None:
    made = domain({"command": ["no-such-program"]})
    assert made.is_correct("It is 7.", "it is  7") and not made.is_correct("8", "7") and not made.is_correct(None, "7")


def test_rewards_come_from_the_check(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    row = json.loads(line)\n"
        "    print(json.dumps(int(row['completion']) == row['row']['a'] + row['row']['b']))\n"
    )
    made = domain({"command": ["python", str(tmp_path / "check.py")]})
    example = made.read({"a": 3, "b": 4, "sum": 7})
    tasks = [RolloutTask(row_id=n, prompt=[], example=example, label=label) for n, label in enumerate("7777")]
    tasks[3] = RolloutTask(row_id=3, prompt=[], example=example, label=None)
    found = grade(made, tasks, [" 7", " 8", " seven", " 7"])
    assert [(of.right, of.parsed) for of in found] == [(True, True), (False, True), (False, False), (False, True)]
    assert (found[2].problem or "").startswith("check_failed: ")

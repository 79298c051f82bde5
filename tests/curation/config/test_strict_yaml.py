"""YAML that PyYAML drops or fails on is refused in one line; words and numbers are what they look like."""

from pathlib import Path

import pytest
import yaml

from curation.config.files import MAX_CHARACTERS, MAX_DEPTH, parse_yaml, read
from curation.config.load import load_config
from curation.errors import ConfigError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12))

MERGED = "a0: &a0 {b: 1}\n" + "".join(f"a{n + 1}: &a{n + 1}\n  <<: [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\nname: x\nseed: 2", "lines 1 and 3: the key 'seed' occurs twice"),
        ("a:\n  - {c: 1,\n     'c': 2}", "lines 2 and 3: the key 'c' occurs twice"),
        ("{n: 1, n: 1}", "line 1: the key 'n' occurs twice"),
        ("a: 1\n1: b", "line 2: the key '1' is not a text"),
        ("a: No", "line 1: 'No' is false to YAML; put it in quotes, or write false"),
        ("a: 1\nb: [x, on]", "line 2: 'on' is true to YAML; put it in quotes, or write true"),
        ("YES", "line 1: 'YES' is true to YAML; put it in quotes, or write true"),
        ("a: -1.0e+999", "'-inf' is a float, which no key takes"),
        ("a: !!timestamp 2020-01-01", "'2020-01-01' is a date, which no key takes"),
        ("a: !!set {b}", "'{.b.}' is a set, which no key takes"),
        ("<<: {a: 1}\n<<: {a: 2}", "lines 1 and 2: the key '<<' occurs twice"),
        ("a: &x\n  b: [1, *x]", "line 1: an anchor stands within its own value"),
        ("a: &x\n  ? *x\n  : 1", "line 1: the key .* is not a text"),
        ("[" * 100_000, f"nests deeper than {MAX_DEPTH} levels"),
        ("- " * 100 + "x", f"nests deeper than {MAX_DEPTH} levels"),
        ("\n".join(" " * n + "a:" for n in range(200)), f"nests deeper than {MAX_DEPTH} levels"),
        (f"a: &x {'[' * 40}{']' * 40}\nb: {'[' * 20}*x{']' * 20}", f"nests deeper than {MAX_DEPTH} levels"),
        (BOMB, r"line \d+: holds more than 100,000 values"),
        (MERGED, r"line \d+: holds more than 100,000 values"),
        ("n: " + "1" * 5_000, "is not YAML: Exceeds the limit"),
        ("a: !!int x", "is not YAML: invalid literal for int"),
        ("a: !!bool x", "is not YAML: 'x'"),
        ('a: "\\ud83d"', r"'\\ud83d' has half of a surrogate pair"),
        ("a: !!python/object/apply:os.system [x]", "is not YAML: could not determine a constructor for the tag"),
        ("? [a]\n: 1", "line 1: the key .* is not a text"),
        ("a: \x1b[2J", "is not YAML: unacceptable character #x001b"),
        ("---\na: 1\n---\nb: 1", "is not YAML: .*another document.*; correct the text there"),
        ("#" * (MAX_CHARACTERS + 1), "has 1,048,577 characters"),
    ],
)
def test_what_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}") as found:
        parse_yaml(text)
    assert "\n" not in str(found.value) and str(found.value).isprintable()
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml: ") as found:
        load_config(tmp_path / "x.yaml")
    assert str(found.value).partition("x.yaml: ")[2]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: {a: 1}\nc: [{a: 1}, {a: 2}]",
        "base: &b {x: 1, y: 2}\nmore: &m {<<: *b, x: 3}\nlast: {<<: *m, y: 4}\nagain: {<<: [*m, *b]}",
        "a: &x [1]\nb: [*x, *x]",
        "a: '2020-01-01'\nb: 1.5\nc: false\nf: -1_000\ng: 'no'\nh: 0\nd: '\\ud83d'\ne: 🙂\n",
        "",
        "- 1\n- [2, [3]]",
    ],
)
def test_the_rest_is_as_pyyaml_reads_it(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text)


def test_words_and_numbers_are_what_they_look_like() -> None:
    text = "a: 'No'\nb: [x, 'on', !!str off, nope]\nc: 010\nd: 12:30\ne: 1:30.5\nf: 0x1f\ng: 2020-13-01\nh: .inf\nno: 1"
    words = {"a": "No", "b": ["x", "on", "off", "nope"], "c": "010", "d": "12:30", "e": "1:30.5", "f": "0x1f"}
    assert parse_yaml(text) == words | {"g": "2020-13-01", "h": ".inf", "no": 1}
    numbers = "[1.0e-4, .5, +3, 1., -1_000, ~, null, True, false, '1']"
    assert parse_yaml(numbers) == [1e-4, 0.5, 3, 1.0, -1000, None, None, True, False, "1"]
    for value in ("12e4567", "1e5", "no", "01", "1.5e3", 1e-7, 0.1, -3, True, None, "null", "~", ""):
        assert parse_yaml(yaml.safe_dump({"a": value})) == {"a": value}


def test_overrides_and_bases_are_read_by_the_same_rules(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\nseed: 2\n")
    (tmp_path / "x.yaml").write_text("base: base.yaml\n")
    with pytest.raises(ConfigError, match=r"base\.yaml: lines 1 and 2: the key 'seed' occurs twice"):
        read(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("name: x\n")
    with pytest.raises(ConfigError, match=r"^--set 'selection=\{n: 1, n: 2\}': line 1: the key 'n' occurs twice"):
        load_config(tmp_path / "x.yaml", ["selection={n: 1, n: 2}"])
    for key in ("evaluation.chat_template", "splits.audit"):
        with pytest.raises(ConfigError, match=rf"^--set '{key}=Off': line 1: 'Off' is false to YAML"):
            load_config(tmp_path / "x.yaml", [f"{key}=Off"])
    with pytest.raises(ConfigError, match=r"^--set .*: nests deeper"):
        load_config(tmp_path / "x.yaml", ["selection=" + "[" * 10_000])


def test_a_number_or_a_truth_value_in_place_of_a_text_is_to_be_put_in_quotes(tmp_path: Path) -> None:
    for value in ("1", "true", "2.5"):
        (tmp_path / "x.yaml").write_text(f"teacher: {{backend: given, completion: {value}}}\n")
        with pytest.raises(ConfigError, match=r"teacher\.completion: .*; put it in quotes"):
            load_config(tmp_path / "x.yaml")

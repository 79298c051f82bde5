"""YAML that PyYAML reads in its own way, or fails on, is refused in one line that names the lines."""

from pathlib import Path

import pytest
import yaml

from curation.config.files import read
from curation.config.load import load_config
from curation.config.strict_yaml import MAX_CHARACTERS, MAX_DEPTH, parse
from curation.errors import ConfigError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\nname: x\nseed: 2", "lines 1 and 3: the key 'seed' occurs twice"),
        ("a:\n  - {c: 1,\n     'c': 2}", "lines 2 and 3: the key 'c' occurs twice"),
        ("{n: 1, n: 1}", "line 1: the key 'n' occurs twice"),
        ("a: 1\n1: b", "line 2: the key '1' is not a text"),
        ("no: b", "line 1: the key 'False' is not a text"),
        ("a: [.inf]", "line 1: '.inf' is not a finite number"),
        ("a: -1.0e+999", "line 1: '-1.0e.999' is not a finite number"),
        ("a: 2020-01-01", "line 1: '2020-01-01' is a 'timestamp', which no key takes"),
        ("a: No", "line 1: 'No' is false to YAML; put it in quotes, or write false"),
        ("a: 1\nb: [x, on]", "line 2: 'on' is true to YAML; put it in quotes, or write true"),
        ("a: 010", "line 1: '010' is 8 to YAML; put it in quotes, or write 8"),
        ("a: 12:30", "line 1: '12:30' is 750 to YAML; put it in quotes, or write 750"),
        ("a: 1:30.5", "line 1: '1:30.5' is 90.5 to YAML; put it in quotes, or write 90.5"),
        ("a: 0x1f", "line 1: '0x1f' is 31 to YAML; put it in quotes, or write 31"),
        ("a: !!set {b}", "line 1: this is a 'set'"),
        ("<<: {a: 1}\n<<: {a: 2}", "lines 1 and 2: the key '<<' occurs twice"),
        ("a: &x\n  b: [1, *x]", r"line 2: \*x stands within &x itself"),
        ("a: &x\n  ? *x\n  : 1", r"line 2: \*x stands within &x itself"),
        ("[" * 100_000, f"line 1: nests deeper than {MAX_DEPTH} levels"),
        ("- " * 100 + "x", f"line 1: nests deeper than {MAX_DEPTH} levels"),
        ("\n".join(" " * n + "a:" for n in range(200)), f"line 50: nests deeper than {MAX_DEPTH} levels"),
        (f"a: &x {'[' * 40}{']' * 40}\nb: {'[' * 20}*x{']' * 20}", f"line 2: nests deeper than {MAX_DEPTH} levels"),
        (BOMB, "line 6: holds more than 100,000 values"),
        ("a: 1\nb: 2020-13-01", "line 2: '2020-13-01' is a 'timestamp'"),
        ("n: " + "1" * 5_000, "line 1: '1{60}...' is not a int"),
        ("a: !!int x", "line 1: 'x' is not a int"),
        ("a: !!bool x", "line 1: 'x' is not a bool"),
        ('a: "\\ud83d"', r"line 1: '\\ud83d' has half of a surrogate pair"),
        ("a: !!python/object/apply:os.system [x]", "line 1: this is a 'python/object"),
        ("? [a]\n: 1", "is not YAML: .*unhashable key"),
        ("a: \x1b[2J", "is not YAML: unacceptable character #x001b"),
        ("---\na: 1\n---\nb: 1", "is not YAML: .*another document.*; correct the text there"),
        ("#" * (MAX_CHARACTERS + 1), "has 1,048,577 characters"),
    ],
)
def test_what_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}") as found:
        parse(text)
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
    assert parse(text) == yaml.safe_load(text)


def test_overrides_and_bases_are_read_by_the_same_rules(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\nseed: 2\n")
    (tmp_path / "x.yaml").write_text("base: base.yaml\n")
    with pytest.raises(ConfigError, match=r"base\.yaml: lines 1 and 2: the key 'seed' occurs twice"):
        read(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("name: x\n")
    with pytest.raises(ConfigError, match=r"^--set 'selection=\{n: 1, n: 2\}': line 1: the key 'n' occurs twice"):
        load_config(tmp_path / "x.yaml", ["selection={n: 1, n: 2}"])
    with pytest.raises(ConfigError, match=r"^--set .*: line 1: nests deeper"):
        load_config(tmp_path / "x.yaml", ["selection=" + "[" * 10_000])


def test_a_number_or_a_truth_value_in_place_of_a_text_is_to_be_put_in_quotes(tmp_path: Path) -> None:
    for value in ("1", "true", "2.5"):
        (tmp_path / "x.yaml").write_text(f"teacher: {{backend: given, completion: {value}}}\n")
        with pytest.raises(ConfigError, match=r"teacher\.completion: .*; put it in quotes"):
            load_config(tmp_path / "x.yaml")

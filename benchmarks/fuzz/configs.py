"""Configurations with values, keys and YAML that nobody meant, loaded and validated as the command line does."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from benchmarks.fuzz.oracle import attempt
from curation.commands.validate import check
from curation.config import RunConfig
from curation.config.load import load_config, parse_config

NUM_ROWS = 60
BASE: dict[str, Any] = {
    "name": "fuzz",
    "seed": 1,
    "domain": {"name": "math", "timeout": 5},
    "sources": {"sums": {"path": "sums.jsonl", "format": "auto", "id_column": "id"}},
    "splits": {
        "source": {"from": "sums", "rows": 20},
        "calibration": {"from": "sums", "rows": 5},
        "pool": {"from": "sums"},
        "test": {"from": "sums", "fraction": 0.1},
        "overlap": "drop",
        "audit": True,
    },
    "teacher": {
        "backend": "scripted",
        "chunk_rows": 10,
        "states": ["output_last"],
        "decoding": {"temperature": 0, "max_tokens": 8, "stop": ["\n"]},
        "scripted": {"completions": [" \\boxed{1}"], "seconds_per_row": 0},
        "max_error_rate": 0.1,
    },
    "trust": {"columns": ["mean_logprob"]},
    "selection": {"budget": {"n": 5}, "arms": ["naive", "trust"]},
    "generations": [{"student": {"init": {"hidden_size": 16, "num_layers": 2}}}],
    "run_dir": "runs/fuzz",
    "commit_seconds": 2,
    "ray": {"num_cpus": 1},
}
ODD: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1,
        5,
        2**63,
        2**70,
        -(2**70),
        0.5,
        -0.5,
        1e308,
        float("inf"),
        float("nan"),
        "",
        " ",
        "x",
        "\x1b",
    ),
    *(
        "null",
        "nan",
        "a" * 300,
        "../..",
        "/dev/null",
        "\x00",
        "é b",
        "\u202e",
        "<script>",
        "{{ x }}",
        "s3://",
        "http://[",
        "*",
    ),
    *(
        [],
        {},
        [None],
        [[]],
        {"": None},
        {"name": "x"},
        {"x": {"y": 1}},
        ["naive", "naive"],
        ["output_last"] * 2,
        b"\xff",
    ),
    *("module:Name", "os:system", "math", "chess", "naive", "trust", "csv", "[", "1e5", "2020-01-01"),
]


def _paths(item: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    return [at, *(path for key, part in parts for path in _paths(part, (*at, key)))]


PATHS = _paths(BASE)[1:]
KEYS = sorted({str(path[-1]) for path in PATHS} | {"base", "set", "tracking", "signals", "prices", "tune", "models"})
EDITS = st.tuples(
    st.sampled_from(PATHS),
    st.sampled_from(["put", "drop", "rename", "add"]),
    st.sampled_from(KEYS),
    st.sampled_from(ODD),
)
SNIPPETS = (
    "seed: 3\n",
    "&a ",
    "*a",
    "<<: ",
    "\t",
    "'",
    '"',
    "[",
    "{",
    "- ",
    ": ",
    "\x00",
    "\x1b",
    "!!int ",
    "---\n",
    "|\n",
    "#",
)
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.sampled_from(SNIPPETS)), max_size=2)


@st.composite
def configurations(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw the text of a configuration, and overrides."""
    raw = copy.deepcopy(BASE)
    for path, kind, key, value in draw(st.lists(EDITS, max_size=2)):
        _edit(raw, path, kind, key, value)
    dumped = yaml.safe_dump(raw, sort_keys=False, allow_unicode=draw(st.booleans()))
    for share, length, snippet in draw(DAMAGE) if draw(st.integers(0, 2)) == 0 else ():
        at = int(share * len(dumped))
        dumped = dumped[:at] + snippet + dumped[at + length :]
    overrides = []
    if draw(st.integers(0, 3)) == 0:
        path, value = draw(st.sampled_from(PATHS)), draw(st.sampled_from(ODD))
        # As YAML, since one of the values holds itself.
        given = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=1 << 30)
        overrides = [".".join(map(str, path)) + draw(st.sampled_from(["=", ".x=", "..=", ".0="])) + given]
    return dumped, overrides


def _edit(raw: Any, path: tuple[Any, ...], kind: str, key: str, value: Any) -> None:
    *parents, last = path
    for parent in parents:
        raw = raw[parent] if isinstance(raw, dict) and parent in raw else None
    if not isinstance(raw, dict) or last not in raw:
        return
    if kind == "put":
        raw[last] = value
    elif kind == "add" and isinstance(raw[last], dict):
        raw[last][key] = value
    elif kind == "rename":
        raw[key] = raw.pop(last)
    elif kind == "drop":
        del raw[last]


def prepare(folder: Path) -> None:
    """Write the file that the configurations read."""
    rows = [{"id": n, "problem": f"What is {n} + 1?", "answer": n + 1} for n in range(NUM_ROWS)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))


def check_configuration(folder: Path, text: str, overrides: list[str]) -> None:
    """Load a configuration; what loads is what PyYAML reads, survives being written, and can be validated."""
    path = folder / "fuzz.yaml"
    path.write_text(text)
    config = attempt("configuration", lambda: load_config(path, overrides))
    if config is None:
        return
    plain = yaml.safe_load(text)
    if not overrides and "base" not in plain:
        known = parse_config(plain)
        assert _without_places(known) == _without_places(config)
    written = folder / "config.yaml"
    written.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False))
    assert load_config(written) == config, "a configuration that is written and read again is another one"
    attempt("validate", lambda: list(check(config)))


def _without_places(config: RunConfig) -> dict[str, Any]:
    content = config.model_dump(mode="json", by_alias=True)
    for source in content["sources"].values():
        del source["path"]
    return content

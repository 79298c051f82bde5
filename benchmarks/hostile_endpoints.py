"""Misbehaving servers, each the teacher of a run over a small pool, which recover later.

The server misbehaves until the run has its labels or stops; then it answers correctly, and the same command resumes.
The behaviour is carried through if the first run ends with code 0, and refused if that ends with code 1 or 2 and one
line. Checked in both cases, after recovery: each row is labelled once; no question with a stored answer is paid for
again; the spending by the server's count is at most the recorded one and the limit; and the only error rows are those
with an answer that no row can hold.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import yaml
from click.testing import CliRunner

from curation.teachers.endpoint_paid import read_spending
from tests.endpoint_server import Server, prompt_of, serving

NUM_SOURCE, NUM_POOL = 12, 12
PRICE = {"input": 1000.0, "output": 5000.0}
LIMIT = 60.0
"""Spending limit of a run, which allows every question twice at its maximum cost."""
Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """A behaviour of a server: ``faults`` maps a prompt, and how often it was asked before, to a fault."""

    name: str
    faults: Callable[[str, int], tuple[str, Any]]
    counts: frozenset[str] = frozenset()
    """Kinds of odd answers that the run's record must count."""
    leaves_errors: bool = False
    """Whether rows with odd answers, and only these, remain error rows until they are requested again."""
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the endpoint."""


def always(fault: tuple[str, Any]) -> Callable[[str, int], tuple[str, Any]]:
    """Return the fault of every question."""
    return lambda prompt, before: fault


def once(fault: tuple[str, Any], *, every: int = 2) -> Callable[[str, int], tuple[str, Any]]:
    """Return the fault of the first try of one question in ``every``."""
    return lambda prompt, before: fault if not before and _number(prompt) % every == 0 else ("pass", None)


def _number(prompt: str) -> int:
    return int(re.findall(r"What is (\d+) - ", prompt)[-1])


def edit(**fields: Any) -> tuple[str, Any]:
    """Return the fault of an answer with other fields; those of its choice by the name ``choice``."""

    def change(answer: Answer) -> None:
        answer["choices"][0].update(fields.get("choice", {}))
        answer.update({name: value for name, value in fields.items() if name != "choice"})

    return "edit", change


def logprob(**fields: Any) -> tuple[str, Any]:
    """Return the fault of an answer whose tokens have other fields."""
    return "edit", lambda answer: [token.update(fields) for token in answer["choices"][0]["logprobs"]["content"]]


def usage(**fields: Any) -> tuple[str, Any]:
    """Return the fault of an answer that says otherwise what it cost."""
    return "edit", lambda answer: answer["usage"].update(fields)


def text(content: object) -> dict[str, Any]:
    """Return a choice's fields with another text."""
    return {"message": {"content": content}}


BEHAVIOURS = (
    Behaviour(name="429 with Retry-After: 0", faults=once(("status", (429, {"retry-after": "0"})))),
    Behaviour(name="429 with a date that is none", faults=once(("status", (429, {"retry-after": "soon"})))),
    Behaviour(name="500 once", faults=once(("status", (500, {})))),
    Behaviour(name="503 always", faults=always(("status", (503, {})))),
    Behaviour(name="400 of one row", faults=once(("status", (400, {})), every=4), leaves_errors=True),
    Behaviour(name="401 always", faults=always(("status", (401, {})))),
    Behaviour(name="402 always", faults=always(("status", (402, {})))),
    Behaviour(name="302 elsewhere", faults=always(("status", (302, {"location": "http://127.0.0.1:9/v1"})))),
    Behaviour(name="307 elsewhere", faults=always(("status", (307, {"location": "http://127.0.0.1:9/v1"})))),
    Behaviour(name="a cut body once", faults=once(("cut", None))),
    Behaviour(name="a body drop by drop", faults=once(("drip", 0.2), every=4), endpoint={"timeout_seconds": 5}),
    Behaviour(name="a gzip bomb", faults=once(("gzip", gzip.compress(b" " * 2**26)), every=4),
              counts=frozenset({"no_answer"})),
    Behaviour(name="a broken gzip", faults=once(("gzip", b"no gzip"))),
    Behaviour(name="a page in place of JSON", faults=always(("body", b"<html>")), counts=frozenset({"no_answer"})),
    Behaviour(name="JSON nested without end", faults=once(("body", b"[" * 100_000)), counts=frozenset({"no_answer"})),
    Behaviour(name="a 200 with an error", faults=always(("body", b'{"error": {"message": "overloaded"}}')),
              counts=frozenset({"no_answer"})),
    Behaviour(name="a 200 with an error of half a character", faults=once(("body", b'{"error": "\\ud800"}')),
              counts=frozenset({"no_answer"})),
    Behaviour(name="a 200 with a 429 in it", faults=once(("body", b'{"error": {"code": 429, "message": "slow"}}')),
              counts=frozenset({"no_answer"})),
    Behaviour(name="no choices", faults=always(edit(choices=[])), counts=frozenset({"no_answer"})),
    Behaviour(name="choices: true", faults=once(edit(choices=True)), counts=frozenset({"no_answer"})),
    Behaviour(name="a text that is true", faults=once(edit(choice=text(True))), counts=frozenset({"no_answer"})),
    Behaviour(name="finish_reason: error", faults=always(edit(choice={"finish_reason": "error"})),
              counts=frozenset({"no_answer"})),
    Behaviour(name="half a character in a text", faults=once(edit(choice=text("\ud800")), every=4), leaves_errors=True),
    Behaviour(name="half a character in a token", faults=always(logprob(token="\ud800", bytes=None)),
              counts=frozenset({"other_tokens"})),
    Behaviour(name="NaN log-probabilities", faults=once(logprob(logprob=float("nan")), every=4), leaves_errors=True),
    Behaviour(name="true as log-probability", faults=once(logprob(logprob=True), every=4), leaves_errors=True),
    Behaviour(name="bytes: 10^10", faults=once(logprob(bytes=10**10), every=4), leaves_errors=True),
    Behaviour(name="log-probabilities of other tokens", faults=always(logprob(token="what", bytes=None)),
              counts=frozenset({"other_tokens"})),
    Behaviour(name="another model", faults=always(edit(model="other")), counts=frozenset({"other_model"})),
    Behaviour(name="-1,000,000 tokens", faults=always(usage(prompt_tokens=-1_000_000, completion_tokens=-1_000_000)),
              counts=frozenset({"estimated"})),
    Behaviour(name="2^31 tokens", faults=always(usage(prompt_tokens=2**31, completion_tokens=2**31)),
              counts=frozenset({"estimated"})),
    Behaviour(name="completion_tokens: null", faults=always(usage(completion_tokens=None)),
              counts=frozenset({"estimated"})),
    Behaviour(name="true tokens", faults=always(usage(prompt_tokens=True, completion_tokens=True)),
              counts=frozenset({"estimated"})),
    Behaviour(name="no usage", faults=always(edit(usage=None)), counts=frozenset({"estimated"})),
)  # fmt: skip


def try_behaviour(behaviour: Behaviour, folder: Path) -> str:
    """Return the outcome of a behaviour, ``refused`` or ``carried through``; Ray runs already.

    Raises:
        AssertionError: rows, money or the record are not what they should be.
    """
    with serving(answer=lambda prompt: f"\\boxed{{{1 if _number(prompt) % 4 else 2}}}") as server:
        config = write_config(folder, server, behaviour)
        server.faults = behaviour.faults
        code, last = curate("run", config, "--until", "label-pool")
        assert code in (0, 1, 2), last
        spending = read_spending(str(folder / "run" / "paid"))
        counted = set() if spending is None else set(spending.odd)
        assert counted == behaviour.counts, f"counted {sorted(counted)}"
        server.faults = always(("pass", None))
        healed, said = curate("run", config, "--until", "label-pool")
        assert healed == 0, said
        check(behaviour, server, folder / "run")
    return "carried through" if code == 0 else "refused"


def check(behaviour: Behaviour, server: Server, run: Path) -> None:
    """Compare the rows, the questions and the money of a finished run with what the server saw."""
    rows = [
        row
        for path in run.glob("gen-0/label-pool-*/labels.lance")
        for row in lance.dataset(str(path)).to_table(columns=["row_id", "error", "completion"]).to_pylist()
    ]
    assert len(rows) == len({row["row_id"] for row in rows}) == NUM_POOL, f"{len(rows)} rows"
    errors = [row["error"] for row in rows if row["error"]]
    spending = read_spending(str(run / "paid"))
    assert spending is not None
    money, truth = spending.money(_price()), sum(_price().of(*tokens) for tokens in server.tokens)
    assert truth <= money + 1e-9 <= LIMIT, f"{truth:.3f} was spent, and {money:.3f} is recorded"
    before, prompts = len(server.asked), {prompt_of(body) for body in server.asked}
    odd = sum(behaviour.faults(prompt, 0)[0] != "pass" for prompt in prompts)
    assert len(prompts) == NUM_POOL and odd
    assert len(errors) == (odd if behaviour.leaves_errors else 0), errors[:3]
    if not behaviour.leaves_errors:
        return
    code, said = curate("run", run.parent / "served.yaml", "--until", "label-pool", "--redo", "gen-0/label-pool")
    assert code == 0, said
    assert len(server.asked) == before + NUM_POOL, "by --redo each row of the pool is asked once more"
    (again,) = (path for path in run.glob("gen-0/label-pool-*.1/labels.lance"))
    assert lance.dataset(str(again)).count_rows("error IS NULL") == NUM_POOL


def _price() -> Any:
    from curation.config.external import TokenPrice

    return TokenPrice(**PRICE)


def write_config(folder: Path, server: Server, behaviour: Behaviour) -> Path:
    """Write a run over sums whose teacher is the server."""
    rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(NUM_SOURCE + NUM_POOL)]
    folder.mkdir(parents=True)
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    section = {"url": server.url, "model": "m", "price": PRICE, "limit": LIMIT, "retries": 1, "concurrency": 4}
    config = {
        "name": "hostile",
        "run_dir": str(folder / "run"),
        "domain": "math",
        "sources": {"sums": {"path": str(folder / "sums.jsonl")}},
        "splits": {"source": {"from": "sums", "rows": NUM_SOURCE}, "pool": {"from": "sums", "rows": NUM_POOL}},
        "teacher": {"backend": "endpoint", "endpoint": {**section, **behaviour.endpoint},
                    "decoding": {"max_tokens": 16}, "max_error_rate": 1},
        "selection": {"budget": {"n": 5}, "arms": ["naive"]},
        "commit_seconds": 0.2,
    }  # fmt: skip
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def curate(verb: str, *arguments: object) -> tuple[int, str]:
    """Run a command in this process; its exit code and its last line.

    Raises:
        AssertionError: it ended by a traceback, or gave more than one reason.
    """
    from curation.cli import main

    told = CliRunner().invoke(main, [verb, *map(str, arguments)])
    failed = told.exception
    assert failed is None or isinstance(failed, SystemExit), f"{type(failed).__name__}: {failed}"
    lines = told.stderr.splitlines() or [""]
    assert told.exit_code == 0 or sum(line.startswith("curate: ") for line in lines) == 1, lines[-3:]
    return told.exit_code, lines[-1]


@contextmanager
def local_ray() -> Iterator[None]:
    """Start one Ray for all runs, whose actors stay warm."""
    from curation import session
    from curation.cluster.session import local_or_cluster
    from curation.config import RayConfig

    with local_or_cluster(RayConfig(num_cpus=2)), session():
        yield


def try_all(folder: Path) -> Counter[str]:
    """Count runs refused while the server was sick, and runs carried through."""
    counts: Counter[str] = Counter()
    with local_ray():
        for number, behaviour in enumerate(BEHAVIOURS):
            try:
                outcome = try_behaviour(behaviour, folder / str(number))
            except AssertionError as error:
                outcome = "failed"
                print(f"endpoints: {behaviour.name}: failed: {error}")
            counts[outcome] += 1
    return counts

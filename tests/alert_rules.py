"""An evaluator of the rules of ``deploy/alerts.yaml``: the part of PromQL that they use, over scraped samples."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

STALE_SECONDS = 300.0
"""How long Prometheus takes a sample for current, unless its series is gone from a later scrape."""
UNITS = {"s": 1, "m": 60, "h": 3600}
TOKEN = re.compile(r"\s*(?:(\d+\.?\d*)(?![smh\w])|([A-Za-z_]\w*)|(\{[^}]*\})|(\[[^\]]*\])|(==|!=|>=|<=|[><()/,]))")

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = tuple[float, Mapping[tuple[str, Labels], float]]
"""The time, and the values of all series that the endpoint showed, by name and labels."""


def seconds(text: str) -> float:
    """A duration of one unit."""
    return float(text[:-1]) * UNITS[text[-1]]


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def firing(found: Sequence[dict[str, Any]], scrapes: Sequence[Scrape]) -> set[str]:
    """The alerts that fire at some time, evaluated at each scrape."""
    fired, since = set(), dict[tuple[str, Labels], float]()
    for place, (now, _) in enumerate(scrapes):
        for rule in found:
            name, active = rule["alert"], Expression(rule["expr"], scrapes[: place + 1]).vector()
            for key in [key for key in since if key[0] == name and key[1] not in active]:
                del since[key]
            for labels in active:
                if now - since.setdefault((name, labels), now) >= seconds(rule.get("for", "0s")):
                    fired.add(name)
    return fired


class Expression:
    """An expression at the time of the last scrape."""

    def __init__(self, text: str, scrapes: Sequence[Scrape]) -> None:
        self._scrapes, self._now = scrapes, scrapes[-1][0]
        self._tokens = [next(group for group in match.groups() if group) for match in TOKEN.finditer(text)]
        assert "".join(self._tokens) == re.sub(r"\s+", "", text), f"{text}: cannot be read"

    def vector(self) -> Vector:
        found = self._set_operation()
        assert not self._tokens, f"{self._tokens} is left"
        return found

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, expected: str | None = None) -> str:
        assert expected in (None, self._peek()), (expected, self._tokens)
        return self._tokens.pop(0)

    def _set_operation(self) -> Vector:
        left = self._comparison()
        while self._peek() in ("and", "unless"):
            verb, on = self._take(), None
            if self._peek() == "on":
                self._take()
                on = self._names()
            right = {_only(labels, on) for labels in self._comparison()}
            left = {key: value for key, value in left.items() if (_only(key, on) in right) == (verb == "and")}
        return left

    def _comparison(self) -> Vector:
        left = self._quotient()
        if self._peek() in (">", "<", "==", ">=", "<=", "!="):
            compare, number = self._take(), float(self._take())
            tests = {">": float.__gt__, "<": float.__lt__, "==": float.__eq__, "!=": float.__ne__}
            left = {key: value for key, value in left.items() if tests[compare](value, number)}
        return left

    def _quotient(self) -> Vector:
        left = self._term()
        if self._peek() != "/":
            return left
        self._take()
        right = self._term()
        return {key: value / right[key] for key, value in left.items() if right.get(key)}

    def _term(self) -> Vector:
        name = self._take()
        if name == "(":
            found = self._set_operation()
            self._take(")")
            return found
        if name in ("sum", "max"):
            self._take("by")
            by = self._names()
            self._take("(")
            groups: dict[Labels, list[float]] = {}
            for labels, value in self._set_operation().items():
                groups.setdefault(_only(labels, by), []).append(value)
            self._take(")")
            return {labels: (sum if name == "sum" else max)(values) for labels, values in groups.items()}
        if name in ("increase", "rate", "last_over_time"):
            self._take("(")
            series, window = self._selector(self._take()), seconds(self._take()[1:-1])
            self._take(")")
            return {labels: value for labels, of in series.items() for value in self._over(name, of, window)}
        return {
            labels: value
            for labels, of in self._selector(name).items()
            for time, value in of[-1:]
            if time == self._now  # a series that the newest scrape lacks is stale
        }

    def _over(self, name: str, series: list[tuple[float, float]], window: float) -> Iterator[float]:
        inside = [value for time, value in series if time > self._now - window]
        if name == "last_over_time":
            yield from inside[-1:]
        elif len(inside) > 1:  # what Prometheus extrapolates is left out
            grown = sum(after - before if after >= before else after for before, after in itertools.pairwise(inside))
            yield grown / window if name == "rate" else grown

    def _selector(self, name: str) -> dict[Labels, list[tuple[float, float]]]:
        """The samples of each series, by time."""
        wanted = re.findall(r'(\w+)(!?=)"([^"]*)"', self._take()) if self._peek().startswith("{") else []
        found: dict[Labels, list[tuple[float, float]]] = {}
        for time, values in self._scrapes:
            for (metric, labels), value in values.items():
                own = dict(labels)
                if metric == name and all((own.get(key, "") == text) == (sign == "=") for key, sign, text in wanted):
                    found.setdefault(labels, []).append((time, value))
        return found

    def _names(self) -> set[str]:
        self._take("(")
        names = set()
        while (token := self._take()) != ")":
            names |= {token} - {","}
        return names


def _only(labels: Labels, names: set[str] | None) -> Labels:
    return labels if names is None else frozenset(item for item in labels if item[0] in names)

"""A replica of a server on a trust package: it checks requests, answers their rows, watches for a shift, emits metrics.

``serve.py`` puts it behind Ray Serve; this module itself needs neither Serve nor Ray.
"""

import hmac
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arrays import Floats
from curation.errors import ConfigError, RowError, SourceError
from curation.filter.rows import RESULT, Filter
from curation.json_types import Json
from curation.metrics.shift import MIN_ROWS, Shift, compare_samples
from curation.stages.shift import get_states, join_states
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry

Row = Json

MAX_ROWS = 4096
"""Maximum number of rows of a request."""
MAX_BYTES = 2**22
"""Maximum size of a request, in bytes."""
MAX_DEPTH = 32
"""Maximum depth of nested lists and objects, the request's own included."""
TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} deep; flatten them"
TOKEN = "CURATION_TOKEN"
"""Environment variable with the token of authorised clients."""


class ShiftWatch:
    """A watch that tests the newest rows of a stream against a sample of labelled rows.

    ``reference`` has the sample's states by name, [N, D] (``TrustPackage.reference``). The ``window`` newest rows are
    compared, each time that ``every`` rows are new; ``seed`` is that of the test's draws. A repeated row counts once:
    equal rows in both halves of the test would look like a difference. Tests are repeated without end, so one p-value
    below 5 % means little: an alarm should use lower bounds, of the AUC's interval (above 0.6 a classifier clearly
    tells the two sets apart) and of the share of foreign rows. On an alarm, trust measured on labelled rows, and
    certified cuts, may not hold (docs/operations.md).

    Raises:
        ValueError: there are no states to compare, or the numbers are too small for a test.
    """

    def __init__(self, reference: Mapping[str, Floats], *, window: int = 2000, every: int = 500, seed: int = 0) -> None:
        if not reference:
            raise ValueError("the trust function reads no hidden states, so there is nothing to watch")
        if window < MIN_ROWS or every < 1:
            raise ValueError(f"window {window}, every {every}: a test needs {MIN_ROWS} rows, and every is at least 1")
        self._states = list(reference)
        self._reference_ND = join_states(reference, self._states)
        self._window, self._every, self._seed = window, every, seed
        self._rows: OrderedDict[int, npt.NDArray[Any]] = OrderedDict()
        self._num_new = 0
        self.last: Shift | None = None
        """Latest test, or ``None`` before the first."""

    def add(self, answers: pa.Table) -> Shift | None:
        """Add the teacher's answers to some rows, a labels table, and return a test if one is due, or else ``None``."""
        healthy = answers.filter(answers["error"].is_null())
        states_ND = join_states(get_states(healthy, self._states), self._states)
        for row_id, state_D in zip(healthy["row_id"].to_pylist(), states_ND, strict=True):
            if row_id in self._rows:
                self._rows.move_to_end(row_id)
                continue
            self._rows[row_id] = state_D
            self._num_new += 1
            if len(self._rows) > self._window:
                self._rows.popitem(last=False)
        if self._num_new < self._every or len(self._rows) < MIN_ROWS:
            return None
        self._num_new = 0
        self.last = compare_samples(self._reference_ND, np.stack(list(self._rows.values())), seed=self._seed)
        return self.last


class Replica:
    """A loaded package: a teacher, its trust function, and a watch for a shift of the rows.

    ``package``, ``teacher``, ``allow_code`` and ``anyway`` are those of :meth:`Filter.load`, whose errors it raises.
    The ``window`` newest rows are compared with the package's sample, each time that ``every`` rows are new.
    """

    def __init__(
        self,
        package: str,
        teacher: str | None = None,
        *,
        allow_code: Sequence[str] = (),
        anyway: bool = False,
        window: int = 2000,
        every: int = 500,
    ) -> None:
        self._filter = Filter.load(package, teacher=teacher, allow_code=allow_code, anyway=anyway)
        found = self._filter.package
        how: Json = {"window": window, "every": every, "seed": found.description.made.seed}
        self.watch = ShiftWatch(found.reference(), **how) if found.description.sample.states else None
        self._telemetry = Telemetry(run=found.description.made.run, stage="serve")
        self._filter.loaded  # noqa: B018 (load the weights before the first request)

    def rows_of(self, body: bytes) -> tuple[list[Row], bool]:
        """Return the rows of a request's body, a JSON object or a list of them, and whether it was a list.

        Raises:
            SourceError: the body is neither, too large or too deep, or a row has a column of an added name.
        """
        if len(body) > MAX_BYTES:
            raise SourceError(f"{len(body):,} bytes are more than {MAX_BYTES:,} in one request; divide it")
        try:
            found = json.loads(body, parse_constant=_refuse_constant)
        except ValueError as error:
            raise SourceError(f"the body is not JSON: {error}") from error
        except RecursionError:
            raise SourceError(TOO_DEEP) from None
        _check_depth(found)
        is_list = isinstance(found, list)
        rows = found if is_list else [found]
        if not all(isinstance(row, dict) for row in rows):
            raise SourceError("a row is a JSON object; give one, or a list of them")
        if len(rows) > MAX_ROWS:
            raise SourceError(f"{len(rows):,} rows are more than {MAX_ROWS:,} in one request; divide them")
        if taken := {name for row in rows for name in row} & set(RESULT.names):
            raise SourceError(f"rows have the columns {', '.join(sorted(taken))} already, which are added; rename them")
        return rows, is_list

    def answer_each(self, requests: Sequence[list[Row]]) -> list[list[Row] | Exception]:
        """Answer the rows of several requests together or, if that fails, each request alone, with its own error."""
        try:
            found = iter(self.answer([row for request in requests for row in request]))
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [self.answer_each([request])[0] for request in requests]
        return [[next(found) for _ in request] for request in requests]

    def answer(self, rows: list[Row]) -> list[Row]:
        """Return each row with its label and trust."""
        before = None if self.watch is None else self.watch.last
        tell = None if self.watch is None else self.watch.add
        found = list(self._filter.score(rows, batch_rows=max(1, len(rows)), tell=tell))
        self._telemetry.add(metrics.ROWS_SERVED, len(found))
        for kind, number in Counter(RowError(row["error"]).kind for row in found if row["error"]).items():
            self._telemetry.add(metrics.ERROR_ROWS, number, kind=kind)
        if self.watch is not None and (last := self.watch.last) is not None and last is not before:
            self._telemetry.tell_shift(last.to_json())
        return found


class Door:
    """A check that requests have the token, as ``Authorization: Bearer TOKEN``.

    ``token_env`` is the environment variable that holds the token, on every node where a replica may run. If it is
    empty, a ``ConfigError`` is raised unless ``is_open``: then everybody may ask without a token.
    """

    def __init__(self, token_env: str = TOKEN, *, is_open: bool = False) -> None:
        token = os.environ.get(token_env, "").strip()
        if not token and not is_open:
            raise ConfigError(
                f"{token_env}: is empty or not set, and whoever reaches the port could ask; set it to a secret on "
                f"every node before Ray starts there, e.g. by `export {token_env}=$(openssl rand -hex 32)`, name "
                "another variable by token_env=NAME, or let everybody in by open=true"
            )
        self._expected = None if is_open else f"Bearer {token}".encode()

    def lets_in(self, authorization: str | None) -> bool:
        """Return whether a request with this header is authorised; the time does not depend on the wrong token."""
        return self._expected is None or hmac.compare_digest((authorization or "").encode(), self._expected)


def _check_depth(value: object) -> None:
    """Refuse values that are nested too deeply, since other code recurses into them."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for item in level if isinstance(item, list | dict)]
        if not level:
            return
        level = [child for item in level for child in (item if isinstance(item, list) else item.values())]
    raise SourceError(TOO_DEEP)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")

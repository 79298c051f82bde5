"""Assigns the rows of a review to people: each row to one person at a time, in the order of the draw."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from curation.extras.review.folder import Review
from curation.extras.review.log import BACK, Standing, VerdictLine, find_standing
from curation.json_types import Json

CLAIM_SECONDS = 900.0
"""Time for which a row stays assigned to an inactive person, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The assignment of a row to a person, which ends at the clock's time ``until``, in seconds."""

    row_id: int
    until: float


class Dealing:
    """Assignments of rows to people, shared by all threads of a server.

    Claims are kept in memory, since they only save people from judging the same row. The log keeps all
    verdicts, from any server, so several servers of one review do no harm.
    """

    def __init__(self, review: Review, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._review = review
        self._rows = {row["row_id"]: row for row in review.rows.to_pylist()}
        self._lock = threading.Lock()
        self._claims: dict[str, Claim] = {}
        self._clock = clock

    def page(self, person: str) -> Json:
        """Return the page of a person: the row to judge and the progress of the review."""
        with self._lock:
            return self._make_page(person)

    def judge(self, person: str, row_id: int, verdict: str, *, saw_trust: bool) -> Json:
        """Log a verdict and return the person's next page.

        Raises:
            KeyError: the row is not in this review.
            ReviewError: the verdict cannot be written.
        """
        if row_id not in self._rows:
            raise KeyError(row_id)
        self._review.log.add(
            [VerdictLine(row_id=row_id, person=person, verdict=verdict, via="page", saw_trust=saw_trust)]
        )
        with self._lock:
            if (claim := self._claims.get(person)) is not None and claim.row_id == row_id:
                del self._claims[person]
            return self._make_page(person)

    def back(self, person: str) -> Json:
        """Withdraw the person's last verdict that still counts, and assign its row to the person again.

        Raises:
            ReviewError: the verdict cannot be withdrawn.
        """
        entries = self._review.log.entries()
        standing = find_standing(entries)
        own = (entry for entry in reversed(entries) if entry.person == person and entry.row_id in self._rows)
        last = next((entry for entry in own if standing.get(entry.row_id, {}).get(person) is entry), None)
        if last is not None:
            self._review.log.add([VerdictLine(row_id=last.row_id, person=person, verdict=BACK, via="page")])
            with self._lock:
                self._claims[person] = Claim(row_id=last.row_id, until=self._clock() + CLAIM_SECONDS)
        return self.page(person)

    def trust(self, row_id: int) -> float | None:
        """Return the trust score of a row; None if its arm does not rank.

        Raises:
            KeyError: the row is not in this review.
        """
        trust: float | None = self._rows[row_id]["trust"]
        return trust

    def _make_page(self, person: str) -> Json:
        standing = self._review.log.standing()
        row_id = self._claim(person, standing)
        row = None if row_id is None else self._rows[row_id]
        judged = self._rows.keys() & standing.keys()
        return {
            "row": None
            if row is None
            else {
                "row_id": str(row_id),  # JavaScript's numbers end at 2^53
                **{name: row[name] for name in ("prompt", "label", "completion")},
                "has_trust": row["trust"] is not None,
            },
            "num_rows": len(self._rows),
            "num_judged": len(judged),
            "num_own": sum(person in standing[other] for other in judged),
            "num_elsewhere": len(self._rows) - len(judged) if row is None else 0,
        }

    def _claim(self, person: str, standing: Standing) -> int | None:
        """Return the row that is, or becomes, assigned to a person; None if there is no free row."""
        now = self._clock()
        self._claims = {who: claim for who, claim in self._claims.items() if claim.until > now}
        own = self._claims.get(person)
        others = {claim.row_id for who, claim in self._claims.items() if who != person}
        free = (row_id for row_id in self._rows if row_id not in standing and row_id not in others)
        has = own is not None and person not in standing.get(own.row_id, {})
        row_id = own.row_id if own is not None and has else next(free, None)
        if row_id is None:
            self._claims.pop(person, None)
        else:
            self._claims[person] = Claim(row_id=row_id, until=now + CLAIM_SECONDS)
        return row_id

"""The local page of a review, served by Flask, which is small and synchronous like our log.

The page is served to this machine only (the loopback address), and every path contains a token. The Host header must
name this machine, so that foreign sites cannot reach the page under their own name (DNS rebinding). Rows are sent as
JSON and inserted as text; the page runs only its own script file.
"""

import hmac
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from curation.errors import ReviewError
from curation.escaping import get_logger
from curation.extras.review.folder import BACK, VERDICTS, Review, VerdictLine, find_standing
from curation.json_types import Json

if TYPE_CHECKING:
    from flask import Flask, Response
    from werkzeug.exceptions import HTTPException

logger = get_logger(__name__)

CLAIM_SECONDS = 900.0
"""Time for which a row stays assigned to an inactive person, in seconds."""
HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
"""Names that the Host header may contain, with any port, since a tunnel may use another one."""
MOST_BYTES = 64 << 10
"""Maximum size of a request, in bytes."""
LONGEST_NAME = 100
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Dealing:
    """Assignments of rows to people, each row to one person at a time, in the order of the draw.

    All threads of a server share them. They are kept in memory, since they only save people from judging the same row.
    The log keeps all verdicts, from any server, so several servers of one review do no harm.
    """

    def __init__(self, review: Review, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._review, self._clock = review, clock
        self._rows = {row["row_id"]: row for row in review.rows.to_pylist()}
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[int, float]] = {}
        """The row that is assigned to each person, and the clock's time at which the assignment ends."""

    def page(self, person: str) -> Json:
        """Return the page of a person: the row to judge and the progress of the review."""
        with self._lock:
            standing, now = self._review.log.standing(), self._clock()
            self._claims = {who: claim for who, claim in self._claims.items() if claim[1] > now}
            own, _ = self._claims.pop(person, (None, 0.0))
            if own is None or person in standing.get(own, {}):
                taken = {row_id for row_id, _ in self._claims.values()} | standing.keys()
                own = next((row_id for row_id in self._rows if row_id not in taken), None)
            if own is not None:
                self._claims[person] = (own, now + CLAIM_SECONDS)
        judged = self._rows.keys() & standing.keys()
        shown: Json | None = None
        if own is not None:
            row = self._rows[own]
            shown = {
                "row_id": str(own),  # JavaScript's numbers end at 2^53
                **{name: row[name] for name in ("prompt", "label", "completion")},
                "has_trust": row["trust"] is not None,
            }
        return {
            "row": shown,
            "num_rows": len(self._rows),
            "num_judged": len(judged),
            "num_own": sum(person in standing[row_id] for row_id in judged),
            "num_elsewhere": len(self._rows) - len(judged) if own is None else 0,
        }

    def judge(self, person: str, row_id: int, verdict: str, *, saw_trust: bool) -> Json:
        """Log a verdict and return the person's next page; a ``KeyError`` if the row is not in this review."""
        if row_id not in self._rows:
            raise KeyError(row_id)
        self._review.log.add(
            [VerdictLine(row_id=row_id, person=person, verdict=verdict, via="page", saw_trust=saw_trust)]
        )
        return self.page(person)

    def back(self, person: str) -> Json:
        """Withdraw the person's last verdict that still counts, and assign its row to the person again."""
        entries = self._review.log.entries()
        standing = find_standing(entries)
        own = (entry for entry in reversed(entries) if entry.person == person and entry.row_id in self._rows)
        last = next((entry for entry in own if standing.get(entry.row_id, {}).get(person) is entry), None)
        if last is not None:
            self._review.log.add([VerdictLine(row_id=last.row_id, person=person, verdict=BACK, via="page")])
            with self._lock:
                self._claims[person] = (last.row_id, self._clock() + CLAIM_SECONDS)
        return self.page(person)

    def trust(self, row_id: int) -> Json:
        """Return the trust score of a row; None if its arm does not rank."""
        return {"trust": self._rows[row_id]["trust"]}


def make_app(review: Review, token: str, person: str) -> "Flask":
    """Return an app that serves a review below ``/<token>/``, to this Host alone; it suggests the name ``person``."""
    try:
        import flask
        from werkzeug.exceptions import HTTPException
    except ImportError as error:
        raise ReviewError(
            'review serve: needs Flask, which is not installed; pip install "trust-curation[review]", or give verdicts '
            "by `curate review import RUN_DIR csv FILE`"
        ) from error

    app = flask.Flask(__name__, static_folder=Path(__file__).parent / "page", static_url_path=f"/{token}")
    dealing = Dealing(review)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]

    @app.before_request
    def refuse() -> None:
        if flask.request.host.rsplit(":", 1)[0] not in NAMES:
            flask.abort(403, f"the Host header must name {HOST}")
        given = flask.request.path.split("/")[1].encode()
        if not hmac.compare_digest(given, token.encode()):
            flask.abort(403, "open the URL that `curate review serve` printed: its token is missing or an old one")

    @app.after_request
    def headed(response: "Response") -> "Response":
        response.headers.update(HEADERS)
        return response

    @app.errorhandler(ReviewError)
    def not_kept(error: ReviewError) -> tuple[Json, int]:
        return {"error": str(error)}, 507

    @app.errorhandler(Exception)
    def failed(error: Exception) -> "HTTPException | tuple[Json, int]":
        if isinstance(error, HTTPException):
            return error
        logger.error("the page failed: %s", "".join(traceback.format_exception(error)))  # Flask's own line has the path
        return {"error": f"{type(error).__name__}; the terminal of `curate review` says more"}, 500

    @app.get(f"/{token}/")
    def index() -> "Response":
        return app.send_static_file("index.html")

    @app.get(f"/{token}/api/start")
    def start() -> Json:
        return {"review": review.folder.name, "arm": review.origin.arm, "run": review.origin.run, "person": person}

    @app.post(f"/{token}/api/<action>")
    def act(action: str) -> Json:
        asked = flask.request.get_json()
        name = asked.get("person") if isinstance(asked, dict) else None
        name = " ".join(name.split()) if isinstance(name, str) else ""
        if not 0 < len(name) <= LONGEST_NAME or action not in ("page", "verdict", "back", "trust"):
            flask.abort(400, f"give person, and for {action} what it needs, as JSON")
        try:
            if action == "page":
                return dealing.page(name)
            if action == "back":
                return dealing.back(name)
            if action == "trust":
                return dealing.trust(int(asked["row_id"]))
            if asked["verdict"] not in VERDICTS:
                raise ValueError(f"verdict is not one of {', '.join(VERDICTS)}")
            saw = asked.get("saw_trust") is True
            return dealing.judge(name, int(asked["row_id"]), asked["verdict"], saw_trust=saw)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            if isinstance(error, ReviewError):
                raise
            flask.abort(400, f"{action}: {error}")

    return app


def serve(review: Review, port: int, person: str, say: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted; ``port`` 0 means any free port."""
    token = secrets.token_urlsafe(24)
    app = make_app(review, token, person)
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        """A request handler without a log."""

        def log(self, type: str, message: str, *args: object) -> None:
            """Do nothing, since each line would show the token."""

    try:
        listener = socket.create_server((HOST, port))  # werkzeug's own would end the process where the port is taken
    except OSError as error:
        raise ReviewError(
            f"--port {port}: cannot be used ({error.strerror}); give another, or leave it out for one that is free"
        ) from error
    with listener, make_server(HOST, port, app, threaded=True, request_handler=Quiet, fd=listener.fileno()) as server:
        say(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
        say("open it in a browser on this machine; each verdict is kept at once; Ctrl-C ends the page")
        with suppress(KeyboardInterrupt):
            server.serve_forever()

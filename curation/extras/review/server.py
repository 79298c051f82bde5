"""The local page of a review, served by Flask, which is small and synchronous like our log.

The page is served to this machine only (the loopback address), and every path contains a token. The Host header must
name this machine, so that foreign sites cannot reach the page under their own name (DNS rebinding). Rows are sent as
JSON and inserted as text; the page runs only its own script file.
"""

import hmac
import secrets
import socket
import traceback
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from curation.errors import ReviewError
from curation.escaping import get_logger
from curation.extras.review.dealing import Dealing
from curation.extras.review.folder import Review
from curation.extras.review.log import VERDICTS
from curation.json_types import Json

if TYPE_CHECKING:
    from flask import Flask, Response
    from werkzeug.exceptions import HTTPException

logger = get_logger(__name__)

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
"""Names that the Host header may contain, with any port, since a tunnel may use another one."""
MOST_BYTES = 64 << 10
"""Maximum size of a request, in bytes."""
LONGEST_NAME = 100
FILES = {"": "index.html", "page.js": "page.js", "page.css": "page.css"}
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def make_app(review: Review, token: str, person: str) -> "Flask":
    """Return an app that serves the page of a review below ``/<token>/``; the page suggests the name ``person``.

    Raises:
        ReviewError: Flask is not installed.
    """
    try:
        import flask
    except ImportError as error:
        raise ReviewError(
            'review serve: needs Flask, which is not installed; pip install "trust-curation[review]", or give verdicts '
            "by `curate review import RUN_DIR csv FILE`"
        ) from error

    app, dealing = flask.Flask(__name__, static_folder=None), Dealing(review)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]
    _guard(app, token)

    @app.get(f"/{token}/")
    @app.get(f"/{token}/<name>")
    def file(name: str = "") -> "Response":
        if name not in FILES:
            flask.abort(404)
        path = files("curation.extras.review") / "page" / FILES[name]
        kind = TYPES[FILES[name].rpartition(".")[2]]
        return flask.Response(path.read_bytes(), content_type=f"{kind}; charset=utf-8")

    @app.get(f"/{token}/api/start")
    def start() -> Json:
        return {"review": review.name, "arm": review.origin.arm, "run": review.origin.run, "person": person}

    @app.post(f"/{token}/api/<action>")
    def act(action: str) -> Json:
        asked = _parse_request(flask.request.get_json())
        if asked is None or action not in ACTIONS:
            flask.abort(400, f"give person, and for {action} what it needs, as JSON")
        try:
            return ACTIONS[action](dealing, asked)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            if isinstance(error, ReviewError):
                raise
            flask.abort(400, f"{action}: {error}")

    return app


def _guard(app: "Flask", token: str) -> None:
    """Refuse requests with a foreign Host or no token, turn errors into messages, and add ``HEADERS`` to responses."""
    import flask
    from werkzeug.exceptions import HTTPException

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


def _parse_request(body: object) -> Json | None:
    """Return the body of a request with the person's name normalised; None if the body or the name is invalid."""
    if not isinstance(body, dict) or not isinstance(body.get("person"), str):
        return None
    name = " ".join(body["person"].split())
    return {**body, "person": name} if 0 < len(name) <= LONGEST_NAME else None


def _judge(dealing: Dealing, asked: Json) -> Json:
    if asked["verdict"] not in VERDICTS:
        raise ValueError(f"verdict is not one of {', '.join(VERDICTS)}")
    saw = asked.get("saw_trust") is True
    return dealing.judge(asked["person"], int(asked["row_id"]), asked["verdict"], saw_trust=saw)


ACTIONS: dict[str, Callable[[Dealing, Json], Json]] = {
    "page": lambda dealing, asked: dealing.page(asked["person"]),
    "verdict": _judge,
    "back": lambda dealing, asked: dealing.back(asked["person"]),
    "trust": lambda dealing, asked: {"trust": dealing.trust(int(asked["row_id"]))},
}
"""Functions of the actions that the page may request, by name."""


def serve(review: Review, port: int, person: str, say: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted; ``port`` 0 means any free port.

    Raises:
        ReviewError: the port is taken, or Flask is not installed.
    """
    token = secrets.token_urlsafe(24)
    app = make_app(review, token, person)
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        """A request handler without a log, since each line would show the token."""

        def log(self, type: str, message: str, *args: object) -> None:
            """Do nothing, since each line would show the token."""

    _require_free(port)
    server = make_server(HOST, port, app, threaded=True, request_handler=Quiet)
    say(f"http://{HOST}:{server.server_port}/{token}/")
    say("open it in a browser on this machine; each verdict is kept at once; Ctrl-C ends the page")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def _require_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that a killed server held just now is free
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ReviewError(
                f"--port {port}: cannot be used ({error.strerror}); give another, or leave it out for one that is free"
            ) from error

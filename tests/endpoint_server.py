"""A server with the paths of OpenAI's API, for tests: it answers by rule, bills each answer, and has faults on demand.

Every question is written to a log before it is answered, so that a test can count what was asked of it and paid.
"""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = tuple[str, Any]
"""``("status", (code, headers))``, ``("cut", None)``, ``("slow", seconds)``, ``("body", bytes)``, ``("bare", None)``
(no log-probabilities), ``("edit", change)`` (of the answer's JSON), ``("drip", seconds)`` (between bytes), ``("gzip",
bytes)`` (compressed already), ``("pass", None)``."""


@dataclass
class Server:
    """The server and what it was asked."""

    url: str = ""
    answer: Callable[[str], str] = lambda prompt: " yes" if len(prompt) % 2 else " no"
    faults: Callable[[str, int], Fault] = lambda prompt, time_asked: ("pass", None)
    """The fault of a question, by its prompt and how often it was asked before."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    paid: Counter[str] = field(default_factory=Counter)
    """Answers that were sent whole, by prompt."""
    tokens: list[tuple[int, int]] = field(default_factory=list)
    """Tokens of each answer that was sent whole."""
    keys: set[str] = field(default_factory=set)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each question."""
    gets: list[str] = field(default_factory=list)
    """Paths that were asked for by GET."""
    most_at_once: int = 0
    now: int = 0
    seconds: float = 0.0
    has_models: bool = True
    """Whether it says which models it has, when all else fails."""
    lock: threading.Lock = field(default_factory=threading.Lock)


def prompt_of(body: dict[str, Any]) -> str:
    return body["messages"][0]["content"] if "messages" in body else str(body["prompt"])


def logprob_of(token: str) -> float:
    """The log-probability of a token: -0.1 for each letter, -0.05 for a space."""
    return -0.1 * len(token.strip()) - 0.05 * token.startswith(" ")


def tops_of(token: str, num: int) -> dict[str, float]:
    """A token and others, which share nine tenths of what it leaves."""
    own = logprob_of(token)
    rest = math.log(max(-math.expm1(own), 1e-9) * 0.9 / max(1, num - 1))
    return {token: own, **{f"<{k}>": rest for k in range(num - 1)}}


def choice_of(body: dict[str, Any], text: str, *, bare: bool) -> dict[str, Any]:
    tokens = [text[: len(text) // 2], text[len(text) // 2 :]] if len(text) > 1 else [text]
    is_chat, num = "messages" in body, body.get("top_logprobs") or body.get("logprobs")
    reason = "stop"
    if not num or bare:
        logprobs = None
    elif is_chat:
        others = [
            {"token": token, "logprob": logprob_of(token), "bytes": list(token.encode()),
             "top_logprobs": [{"token": key, "logprob": value} for key, value in tops_of(token, num).items()]}
            for token in tokens
        ]  # fmt: skip
        logprobs = {"content": others}
    else:
        ended = [*tokens, ""]  # the stop token
        logprobs = {
            "tokens": ended,
            "token_logprobs": [logprob_of(token) for token in ended],
            "top_logprobs": [tops_of(token, num) for token in ended],
        }
    if is_chat:
        return {"index": 0, "message": {"content": text}, "finish_reason": reason, "logprobs": logprobs}
    return {"index": 0, "text": text, "finish_reason": reason, "logprobs": logprobs}


@contextmanager
def serving(port: int = 0, **settings: Any) -> Iterator[Server]:
    """A running server."""
    server = Server(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = prompt_of(body)
            with server.lock:
                before = sum(prompt_of(other) == prompt for other in server.asked)
                server.asked.append(body)
                server.keys.add(self.headers.get("authorization", ""))
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                server.now += 1
                server.most_at_once = max(server.most_at_once, server.now)
            try:
                self._answered(body, prompt, server.faults(prompt, before))
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                with server.lock:
                    server.now -= 1

        def do_GET(self) -> None:
            server.gets.append(self.path)
            self._send(200 if server.has_models else 503, b'{"data": []}', {})

        def _answered(self, body: dict[str, Any], prompt: str, fault: Fault) -> None:
            kind, value = fault
            time.sleep(value if kind == "slow" else server.seconds)
            if kind == "status":
                self._send(value[0], b'{"error": {"message": "no"}}', value[1])
                return
            text = server.answer(prompt)
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 2}
            choice = choice_of(body, text, bare=kind == "bare")
            found = {"choices": [choice], "usage": dict(usage)}
            if kind == "edit":
                value(found)
            content = value if kind in ("body", "gzip") else json.dumps(found).encode()
            if kind in ("cut", "drip"):
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                for number in range(len(content) if kind == "drip" else 1):
                    time.sleep(value or 0)
                    self.wfile.write(content[number : number + 1] if kind == "drip" else content[: len(content) // 2])
                    self.wfile.flush()
                if kind == "cut":
                    self.close_connection = True
                    return
            else:
                self._send(200, content, {"content-encoding": "gzip"} if kind == "gzip" else {})
            with server.lock:
                server.paid[prompt] += 1
                server.tokens.append((usage["prompt_tokens"], usage["completion_tokens"]))

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"content-type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()

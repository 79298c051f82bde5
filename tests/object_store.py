"""An S3 server of a test's own (moto, in memory) that can misbehave, behind a proxy that can be away or hang.

:func:`served` does the same for other servers.
"""

import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SECONDS_TO_START = 60
Answer = tuple[str, list[tuple[str, str]], bytes]
"""Status, headers and body."""
NO_BODY = {"CONTENT_LENGTH": "0", "wsgi.input": io.BytesIO()}


class Misbehaves:
    """A WSGI application before another one: counts, and refuses writes, answers late, loses answers or reads stale.

    An answer to a write is lost after the write was done: the client is told 503, and sends the same again. Reads are
    stale as they were on Amazon's store until 2020: for some seconds after a write, a listing lacks a new object, and
    an object that was replaced is read as it was before. Conditions of writes hold of the newest content all the same.
    """

    def __init__(self, application: Any) -> None:
        self._application = application
        self._refusal = ""
        self._late, self._lose_every, self._writes, self._stale = 0.0, 0, 0, 0.0
        self._before: dict[str, tuple[float, Answer | None]] = {}
        """When each object was written last, and how a read of it was answered before; None: it was not there."""
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/-/refuse-writes":
            self._refusal = environ["QUERY_STRING"]
            start_response("200 OK", [("Content-Length", "0")])
            return [b""]
        if environ["PATH_INFO"] == "/-/misbehave":
            given = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
            self._late, self._lose_every = float(given.get("late", 0)), int(given.get("lose_every", 0))
            self._stale, self._before = float(given.get("stale", 0)), {}
            start_response("200 OK", [("Content-Length", "0")])
            return [b""]
        if environ["PATH_INFO"] == "/-/counts":
            counts = json.dumps(self._counts).encode()
            start_response("200 OK", [("Content-Length", str(len(counts)))])
            return [counts]
        self._counts[environ["REQUEST_METHOD"]] += 1
        if self._refusal and environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(f"{self._refusal} Refused", [("Content-Length", "0")])
            return [b""]
        time.sleep(random.uniform(0, self._late))
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._read(environ, start_response)
        self._writes += 1
        if self._stale and environ["REQUEST_METHOD"] == "PUT" and not environ["QUERY_STRING"]:
            status, headers, body = self._answer({**environ, "REQUEST_METHOD": "GET", **NO_BODY})
            is_there = status.startswith("200")
            self._before[environ["PATH_INFO"]] = (time.monotonic(), (status, headers, body) if is_there else None)
        if self._lose_every and self._writes % self._lose_every == 0:
            self._counts["lost"] += 1
            for _ in self._application(environ, lambda *_: None):
                pass
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return self._application(environ, start_response)

    def _answer(self, environ: dict[str, Any]) -> "Answer":
        """The application's own answer."""
        found: list[Any] = []
        body = b"".join(self._application(environ, lambda status, headers, *_: found.extend((status, headers))))
        return found[0], found[1], body

    def _read(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """The answer to a read, which may be stale."""
        since = time.monotonic() - self._stale
        path, recent = environ["PATH_INFO"], [name for name, (when, _) in self._before.items() if when > since]
        if not self._stale or not recent:
            return self._application(environ, start_response)
        old = self._before[path][1] if path in recent else None
        if old is not None and "HTTP_RANGE" not in environ:
            self._counts["stale"] += 1
            status, headers, body = old
            start_response(status, headers)
            return [body if environ["REQUEST_METHOD"] == "GET" else b""]
        status, headers, body = self._answer(environ)
        if b"<ListBucketResult" in body[:300]:
            for name in recent:
                if self._before[name][1] is None:
                    key = urllib.parse.unquote(name).split("/", 2)[2]
                    entry = rb"<Contents>\s*<Key>" + re.escape(key.encode()) + rb"</Key>.*?</Contents>"
                    body, num = re.subn(entry, b"", body, flags=re.DOTALL)
                    self._counts["stale"] += num
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
            headers.append(("Content-Length", str(len(body))))
        start_response(status, headers)
        return [body]


def serve_s3(port: int) -> None:
    """Serve moto for good."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    application, one_by_one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with one_by_one:  # moto looks and writes in two steps: of two conditional writes at once both may succeed
            return application(environ, start_response)

    run_simple("127.0.0.1", port, Misbehaves(serve), threaded=True)


class Proxy:
    """Passes TCP connections on to a port, but while it is down or hangs."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._flows = threading.Event()
        self._flows.set()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listen(0)
        self.port = self._listener.getsockname()[1]

    def hang(self) -> None:
        """Connections stand, and take what is sent, and nothing comes of it."""
        self._flows.clear()

    def go_on(self) -> None:
        """No longer hang."""
        self._flows.set()

    def down(self) -> None:
        """Connections are refused, and those that are open are cut."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def up(self) -> None:
        """No longer be down."""
        self._listen(self.port)

    def _listen(self, port: int) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                ours, _ = listener.accept()
                theirs = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            with self._lock:
                self._open += [ours, theirs]
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()


class ObjectStore:
    """A server and one bucket in it."""

    def __init__(self, proxy: Proxy, scheme: str, environment_at: Callable[[int], dict[str, str]]) -> None:
        self.proxy = proxy
        self.scheme = scheme
        self.bucket = f"bucket-{proxy.port}"
        self.environment_at = environment_at
        self.environment = environment_at(proxy.port)

    def url(self, name: str) -> str:
        return f"{self.scheme}://{self.bucket}/{name}"

    def counts(self) -> Counter[str]:
        """The requests so far, by method."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.proxy.target}/-/counts") as answer:
            return Counter(json.loads(answer.read()))

    @contextmanager
    def writes_refused(self, status: int) -> Iterator[None]:
        """Within, whatever would write is answered with this HTTP status."""
        control = f"http://127.0.0.1:{self.proxy.target}/-/refuse-writes"
        urllib.request.urlopen(f"{control}?{status}").close()
        try:
            yield
        finally:
            urllib.request.urlopen(control).close()

    @contextmanager
    def misbehaves(self, *, late: float = 0, lose_every: int = 0, stale: float = 0) -> Iterator[None]:
        """Within, each answer is up to ``late`` seconds late, and one of so many answers to writes is lost.

        For ``stale`` seconds after a write, listings and reads tell what was before it.
        """
        control = f"http://127.0.0.1:{self.proxy.target}/-/misbehave"
        urllib.request.urlopen(f"{control}?late={late}&lose_every={lose_every}&stale={stale}").close()
        try:
            yield
        finally:
            urllib.request.urlopen(control).close()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A server with an empty bucket; within, the environment of this process leads there."""
    with served([sys.executable, __file__], "s3", s3_environment) as store:
        yield store


def s3_environment(port: int) -> dict[str, str]:
    """Of clients of the server at this port."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def served(command: list[str], scheme: str, environment_at: Callable[[int], dict[str, str]]) -> Iterator[ObjectStore]:
    """A server with an empty bucket that the command starts on the port that it is given, behind a proxy.

    Within, the environment of this process leads there, as it does clients of the server at a port.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = dict(os.environ)
    try:
        deadline = time.monotonic() + SECONDS_TO_START
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline and server.poll() is None, f"the {scheme} server did not start"
            time.sleep(0.05)
        proxy = Proxy(port)
        store = ObjectStore(proxy, scheme, environment_at)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{store.bucket}", method="PUT")
        urllib.request.urlopen(request).close()
        os.environ |= store.environment
        yield store
        with suppress(OSError):
            proxy.down()
    finally:
        os.environ.clear()
        os.environ |= before
        server.kill()
        server.wait()


if __name__ == "__main__":
    serve_s3(int(sys.argv[1]))

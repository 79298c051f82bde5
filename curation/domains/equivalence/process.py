"""The comparing process: what only math-verify can decide, in bounded time and memory.

Why no library does it: pebble's ``ProcessPool`` (5.2) bounds a call's time and starts a process anew, too. But a busy
process of its outlives a parent that was killed, it imports the parent's main module again, and it bounds no memory.
The timer, the limit and the reset after a fork would stay ours, beside its threads.
"""

import functools
import json
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from curation.domains.equivalence.answers import TOLERANCE, is_equivalent
from curation.domains.equivalence.latex import Exploded
from curation.errors import CurationError

MEMORY_BYTES = 2**30
START_SECONDS = 120.0
"""Maximum seconds for the helper process to start; it takes one or two, but far more on a busy machine."""


class _Undecided(Exception):
    """The comparison needs math-verify."""


def compare(label: str, gold: str, timeout: float = 5.0) -> bool | None:
    """Return whether a label is equivalent to a gold answer; ``None`` if that is undecided within the limits.

    ``timeout``: seconds, without the start of the helper process, which all threads of this process share.
    """
    try:
        return is_equivalent(gold, label, atom=_raise_undecided)
    except _Undecided:
        return _ask(gold, label, timeout)
    except Exploded:
        return None


def _raise_undecided(gold: str, label: str) -> bool:
    raise _Undecided


class _Helper:
    """A process that runs :func:`_serve`; it ends when the connection to its parent closes."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "curation.domains.equivalence.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
        theirs.close()
        if self.exchange(b"", START_SECONDS) is None:
            self.close()
            raise CurationError(
                "math: the process that compares answers did not start; see its message above, and whether "
                "'python -c \"import math_verify\"' works"
            )

    def exchange(self, request: bytes, timeout: float) -> bool | None:
        """Return the helper's verdict on a request, or ``None`` if it is dead or takes longer than ``timeout`` seconds.

        After ``None`` the helper can no longer be used.
        """
        try:
            if request:
                self._connection.send_bytes(request)
            verdict: bool | None = json.loads(self._connection.recv_bytes()) if self._connection.poll(timeout) else None
            return verdict
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


_lock = threading.Lock()
_helper: _Helper | None = None


@functools.lru_cache(maxsize=2**12)
def _ask(gold: str, label: str, timeout: float) -> bool | None:
    """Return the helper's verdict; ``None`` if it took too long or ended."""
    global _helper
    with _lock:
        helper = _helper if _helper and _helper._process.poll() is None else _Helper()
        _helper = None  # set again only after a complete exchange: an interrupt would leave an answer in the pipe
        verdict = helper.exchange(json.dumps([gold, label, timeout]).encode(), timeout)
        if verdict is None:
            helper.close()
        else:
            _helper = helper
    return verdict


def _forget() -> None:
    """Drop the helper in a forked child, which must not use its parent's pipe or wait for a missing thread."""
    global _helper, _lock
    _helper, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _serve(connection: Connection) -> None:
    """Answer comparisons until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles a terminal's Ctrl-C
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    logging.disable()  # math-verify warns that it has no time limit of its own
    _verify("x", "x+1")  # imports
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES if hard < 0 else min(MEMORY_BYTES, hard), hard))
    connection.send_bytes(b"true")
    while True:
        try:
            gold, label, timeout = json.loads(connection.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, timeout + 1)  # ends this process if its parent has died
        try:
            verdict = is_equivalent(gold, label, atom=_verify)
        except (Exploded, MemoryError, RecursionError):
            verdict = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(verdict).encode())


def _verify(gold: str, label: str) -> bool:
    """Return Math-verify's verdict on two canonical expressions; False if they are two clearly different numbers."""
    import sympy
    from math_verify import verify

    try:
        left, right = _read(gold), _read(label)
        if getattr(left, "is_number", False) and getattr(right, "is_number", False):
            one, other = sympy.N(left, 30), sympy.N(right, 30)
            difference, tolerance = abs(one - other), sympy.Rational(*TOLERANCE.as_integer_ratio())
            if difference.is_comparable and difference > tolerance * abs(one):
                return False
        return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # latex2sympy raises a bare Exception for unreadable input, sympy whatever its terms meet
        return False


@functools.lru_cache(maxsize=256)
def _read(text: str) -> Any:
    """Return a canonical expression as a sympy object."""
    import sympy
    from math_verify.parser import parse_latex_cached

    expression = parse_latex_cached(text)
    return expression.subs({symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"})


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))

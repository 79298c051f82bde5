"""Every interface of Ray that Ray does not document, each behind one function with a plain name.

No other module of ``curation`` and ``train`` imports a private name of Ray. A release of Ray may change any of these;
``tests/curation/cluster/test_ray_private.py`` calls each against a real Ray and names the release that changed it.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def starting(tell: Callable[[str], None], *, alone: bool = False) -> Iterator[None]:
    """Make a Ray that starts within the context leave SIGTERM to this process and send its messages to ``tell``.

    Ray's own handlers of SIGTERM (one in Python, one in C++) would end the process without a commit. If the start
    fails, the processes that it began are ended. With ``alone``, Ray listens on the loopback address, as by default
    only on macOS and Windows (``ray.init`` replaces a given loopback address by the network's).
    """
    from ray._private import ray_constants, utils, worker
    from ray._private.node import Node

    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    worker.print_to_stdstream = lambda data, **how: tell("\n".join(data["lines"]))
    begun: list[Node] = []
    begin = Node.__init__

    def note(node: Node, *arguments: Any, **named: Any) -> None:
        begun.append(node)
        begin(node, *arguments, **named)

    changes: list[tuple[Any, str, Any]] = [(utils, "set_sigterm_handler", lambda _: None), (Node, "__init__", note)]
    changes += [(ray_constants, "ENABLE_RAY_CLUSTER", False)] if alone else []
    with ExitStack() as before:
        for of, name, value in changes:
            before.callback(setattr, of, name, getattr(of, name))
            setattr(of, name, value)
        try:
            yield
        except BaseException:
            for node in begun:  # Ray would keep them until this process ends, and a next try starts others
                if hasattr(node, "all_processes"):
                    node.kill_all_processes(check_alive=False, wait=True)
            raise
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))  # replaces that of C++


def find_head_address(address: str) -> str | None:
    """Return ``HOST:PORT`` of the Ray that an address means, or None for ``local``; refuse ``auto`` without a Ray."""
    from ray._private.services import canonicalize_bootstrap_address

    return canonicalize_bootstrap_address(address)

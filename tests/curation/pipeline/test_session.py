"""A session: the runs in it share the processes that they start, a run alone gives them back."""

import json
import subprocess
import sys

import pytest

from curation.config import RayConfig
from curation.pipeline.work import session, started
from curation.rundir.hosts import Host

pytestmark = pytest.mark.whole_run

RAY = RayConfig(num_cpus=2)
HOST = Host(name="model", kind="small", shared=True)


class Held:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_runs_of_a_session_have_the_same_hosts_until_it_ends(local_ray, monkeypatch):
    from curation.pipeline import work as module

    monkeypatch.setattr(module, "_session", type(module._session)("fresh", default=None))  # not the one of all tests
    alone = []
    for _ in range(2):
        with started(RAY, ()) as hosts:
            alone.append(hosts)
    assert alone[0] is not alone[1]
    with session():
        with started(RAY, ()) as first:
            pass
        with session(), started(RAY, ()) as second:
            assert first is second
        held = Held()
        with first.use(HOST, {}, 60, lambda: held):
            pass
        first.keep_for([])  # as a run does at its end
        assert not held.is_closed
    assert held.is_closed


LOOKING = """
import json, sys
from curation.config import RayConfig
from curation.pipeline.work import joined, started
found = []
for opened in (joined, started):
    with opened(RayConfig(num_cpus=1), ()):
        found.append([name for name in ("ray", "torch", "transformers") if name in sys.modules])
print(json.dumps(found))
"""


def test_what_stages_import_is_there_before_their_threads_and_no_look_ahead_pays_for_it():
    asked = subprocess.run([sys.executable, "-c", LOOKING], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(asked.stdout.splitlines()[-1]) == [["ray"], ["ray", "torch", "transformers"]]

"""deploy/serve.py: a trust package behind HTTP. The tests that start Serve are slow ones, and need `ray[serve]`."""

import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_package import sums, tiny_package

from curation.filter import Filter
from curation.metrics.shift import CLEAR_AUC
from curation.telemetry.metrics import ROWS_SERVED, SHIFT_AUC_LOW

ROOT = Path(__file__).parents[1]
TOKEN = {"token_env": "HOME"}  # a variable that Ray's processes have, whenever they were started


def test_the_documented_alarm_is_the_watch_s_own_rule():
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    (rule,) = (rule for rule in group["rules"] if rule["alert"] == "ServedRowsHaveShifted")
    assert rule["expr"] == f'max by (run) (ray_{SHIFT_AUC_LOW.name}{{stage="serve"}}) > {CLEAR_AUC}'
    assert rule["for"] == "30m" and rule["annotations"]["summary"]


@pytest.fixture
def served(tmp_path: Path, local_ray: Any):
    """The address of a served package, and the package."""
    pytest.importorskip("starlette", reason="needs `ray[serve]`")
    import ray.cloudpickle
    from ray import serve

    spec = importlib.util.spec_from_file_location("deploy_serve", ROOT / "deploy" / "serve.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)  # the replica's process finds no such module
    package = tiny_package(tmp_path / "trust")
    serve.start(http_options={"port": 8765})
    serve.run(module.app({"package": package.uri, "num_cpus": "0.5", "window": "100", "every": "50"} | TOKEN))
    yield "http://127.0.0.1:8765/", package
    serve.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[spec.name]


def exported(name: str) -> dict[str, float]:
    """The values of a metric that this machine's Ray exports, by stage."""
    import urllib.request

    import ray

    port = ray.nodes()[0]["MetricsExportPort"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = (re.fullmatch(rf'ray_{name}{{.*stage="(\w+)".*}} (\S+)', line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


@pytest.mark.slow
def test_rows_of_concurrent_requests_come_back_with_their_trust(served):
    import urllib.error
    import urllib.request
    from concurrent.futures import ThreadPoolExecutor

    address, package = served

    def post(body: Any, token: str = os.environ["HOME"]) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = urllib.request.Request(address, data=data, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    rows = sums(120)
    expected = list(Filter.load(package).score(rows))
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(post, rows)) == expected
    assert post(rows[:7]) == expected[:7] and post([]) == []
    (odd,) = post([{"problem": None}])
    assert odd["error"].startswith("null_field") and odd["trust"] is None
    for body, why in (
        (b"{", "not JSON"),
        ([1], "a row is a JSON object"),
        ([{**rows[0], "trust": 1}], "have the columns trust already"),
        ([{}] * 5000, "5,000 rows are more than 4,096"),
        (b"[" * 5_000_000, "bytes are more than"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(body)
        assert caught.value.code == 400 and why in json.load(caught.value)["error"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(rows[0], token="wrong")
    assert caught.value.code == 401
    until = time.monotonic() + 30
    while not exported(SHIFT_AUC_LOW.name) and time.monotonic() < until:
        time.sleep(0.5)
    assert 0 <= exported(SHIFT_AUC_LOW.name)["serve"] <= 1
    assert exported(ROWS_SERVED.name)["serve"] >= len(rows)

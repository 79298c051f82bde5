"""cluster.yaml and deploy/: valid for Ray and KubeRay, and of one mind with each other and with the pinned versions."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
CRDS = Path(__file__).parent / "data" / "kuberay" / "crds.json"


def loaded(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture
def prepared() -> dict[str, Any]:
    """cluster.yaml with Ray's defaults, as `ray up` validates it."""
    from ray.autoscaler._private.util import prepare_config

    return prepare_config(loaded(ROOT / "cluster.yaml"))


def test_ray_up_takes_the_cluster_file(prepared: dict[str, Any]):
    from ray.autoscaler._private.util import validate_config
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig

    validate_config(prepared)
    types = AutoscalingConfig(prepared, skip_content_hash=True).get_node_type_configs()
    assert {name: (kind.min_worker_nodes, kind.resources) for name, kind in types.items()} == {
        "head": (0, {"CPU": 0}),
        "gpu_teacher": (0, {"CPU": 8, "GPU": 1}),
        "cpu_data": (0, {"CPU": 16}),
    }
    assert prepared["max_workers"] == sum(types[name].max_worker_nodes for name in ("gpu_teacher", "cpu_data"))


def test_the_schema_refuses_what_ray_does_not_know(prepared: dict[str, Any]):
    from ray.autoscaler._private.util import validate_config

    prepared["available_node_types"]["gpu_teacher"]["spot"] = True
    with pytest.raises(jsonschema.ValidationError, match="spot"):
        validate_config(prepared)


def test_nodes_of_ray_up_are_alike_and_closed_to_strangers(prepared: dict[str, Any]):
    for name, kind in prepared["available_node_types"].items():
        market = kind["node_config"].get("InstanceMarketOptions", {}).get("MarketType")
        assert market == (None if name == "head" else "spot")
    assert prepared["file_mounts"]["~/trust-curation"] == "."
    for role in ("head", "worker"):
        (start,) = (command for command in prepared[f"{role}_start_ray_commands"] if "ray start" in command)
        assert start.startswith(". ~/curation.sh;")
        (environment,) = (command for command in prepared[f"{role}_setup_commands"] if "> ~/curation.sh" in command)
        assert "RAY_AUTH_MODE=token" in environment and "AWS_REGION=" in environment
        (install,) = (command for command in prepared[f"{role}_setup_commands"] if "trust-curation" in command)
        assert f"ray[default]=={pinned('ray')}" in install and f"transformers=={pinned('transformers')}" in install


def test_the_image_has_the_same_packages_as_the_nodes_of_ray_up(prepared: dict[str, Any]):
    image = (DEPLOY / "Dockerfile").read_text()
    for package in ("[vllm]", f"ray[default]=={pinned('ray')}", f"transformers=={pinned('transformers')}"):
        assert package in image and any(package in command for command in prepared["setup_commands"])


def cluster_specs() -> dict[str, dict[str, Any]]:
    return {
        "raycluster": loaded(DEPLOY / "raycluster.yaml")["spec"],
        "rayjob": loaded(DEPLOY / "rayjob.yaml")["spec"]["rayClusterSpec"],
    }


def test_both_kuberay_files_describe_one_cluster():
    specs = cluster_specs()
    assert specs["raycluster"] == specs["rayjob"]


def test_rays_autoscaler_reads_the_kuberay_cluster():
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    resource = {"metadata": {"name": "curation", "namespace": "default"}, "spec": cluster_specs()["raycluster"]}
    types = _derive_autoscaling_config_from_ray_cr(resource)["available_node_types"]
    found = {name: (kind["min_workers"], kind["max_workers"], kind["resources"]) for name, kind in types.items()}
    (head,) = set(found) - {"gpu-teacher", "cpu-data"}
    assert found[head][2]["CPU"] == 0
    assert found["gpu-teacher"][:2] == (0, 8) and found["gpu-teacher"][2].items() >= {"CPU": 7, "GPU": 1}.items()
    assert found["cpu-data"][:2] == (0, 4) and "GPU" not in found["cpu-data"][2]


def test_what_the_operator_asks_beyond_its_schema():
    spec = cluster_specs()["raycluster"]
    assert spec["rayVersion"] == pinned("ray") and spec["authOptions"] == {"mode": "token"}
    assert spec["enableInTreeAutoscaling"] and spec["autoscalerOptions"]["version"] == "v2"
    account = loaded(DEPLOY / "serviceaccount.yaml")
    environments = []
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["restartPolicy"] == "Never"  # asked for by version 2 of the autoscaler
        assert pod["serviceAccountName"] == account["metadata"]["name"]
        (container,) = pod["containers"]
        environments.append(container["env"])
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert "ephemeral-storage" in container["resources"]["requests"]  # of labels, spilled objects and checkpoints
    token = {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}}  # none is needed
    caches = {"HF_HOME": "hub", "VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton"}
    own = [
        {"name": "AWS_REGION", "value": "us-east-1"},
        {"name": "HF_TOKEN", "valueFrom": token},
        *({"name": name, "value": f"/caches/{folder}"} for name, folder in caches.items()),
    ]
    assert environments == [own] * 3
    job = loaded(DEPLOY / "rayjob.yaml")["spec"]
    assert job["backoffLimit"] > 0 and job["shutdownAfterJobFinishes"]
    assert job["entrypoint"] == "curate run s3://my-bucket/my.yaml"


@pytest.mark.parametrize("kind", ["raycluster", "rayjob"])
def test_the_files_follow_kuberays_crds(kind: str):
    validator = jsonschema.Draft202012Validator(strict_schema(kind))
    resource = loaded(DEPLOY / f"{kind}.yaml")
    assert [error.message for error in validator.iter_errors(resource)] == []
    spec = resource["spec"] if kind == "raycluster" else resource["spec"]["rayClusterSpec"]
    spec["misspelt"] = 1
    spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"] = 7
    del spec["headGroupSpec"]["template"]
    told = sorted(error.message for error in validator.iter_errors(resource))
    assert [message.partition(" (")[0] for message in told] == [
        "'template' is a required property",
        "7 is not of type 'string'",
        "Additional properties are not allowed",
    ]


def strict_schema(kind: str) -> dict[str, Any]:
    """The CRD's schema, unknown fields refused, which the API server would drop without a word."""
    crds = json.loads(CRDS.read_text())
    schema = {**crds[kind], "$defs": crds["$defs"]}
    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return closed(schema)


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(result.get("properties"), dict) and not result.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if result.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    return result


def test_the_slurm_script_is_sound():
    script = DEPLOY / "slurm.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.read_text().index("export SRUN_CPUS_PER_TASK=") < script.read_text().index("srun --nodes")
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(script)], check=True)


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    groups = (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def test_no_pod_is_root_or_becomes_it():
    spec = cluster_specs()["raycluster"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        user = group["template"]["spec"]["securityContext"]
        assert user["runAsNonRoot"] is True and user["runAsUser"] == user["runAsGroup"] == 1000
    assert "\nUSER 1000\n" in (DEPLOY / "Dockerfile").read_text()
    for closed in (spec["autoscalerOptions"], *containers(spec)):
        assert closed["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_images_are_named_by_digest():
    images = {container["image"] for container in containers(cluster_specs()["raycluster"])}
    assert len(images) == 1 and re.fullmatch(r"[^:@]+@sha256:0{64}", *images), "zeros: of nobody's image"
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert "ARG CUDA_IMAGE" in lines and "FROM ${CUDA_IMAGE}" in lines, "no default: a tag may change"


def test_the_network_of_the_pods_is_closed_but_to_whom_they_need():
    policy = loaded(DEPLOY / "networkpolicy.yaml")
    spec, rays = policy["spec"], {"matchExpressions": [{"key": "ray.io/cluster", "operator": "Exists"}]}
    assert policy["kind"] == "NetworkPolicy" and spec["podSelector"] == rays
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] for rule in spec["ingress"]) and all(rule["to"] for rule in spec["egress"])
    everything = [rule["from"] for rule in spec["ingress"] if "ports" not in rule]
    assert everything == [[{"podSelector": rays}]], "others have single ports"
    head = cluster_specs()["raycluster"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    dashboard = next(port["containerPort"] for port in head["ports"] if port["name"] == "dashboard")
    assert {port["port"] for rule in spec["ingress"] for port in rule.get("ports", ())} == {dashboard, 8080}
    blocks = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert blocks == [{"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}]
    job = loaded(DEPLOY / "rayjob.yaml")["metadata"]["name"]
    assert {"podSelector": {"matchLabels": {"batch.kubernetes.io/job-name": job}}} in spec["ingress"][1]["from"]


def test_nodes_give_their_keys_to_no_forged_request(prepared: dict[str, Any]):
    for kind in prepared["available_node_types"].values():
        assert kind["node_config"]["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}


@pytest.mark.parametrize(
    "name", [".env", ".env.local", "id_rsa", "id_ed25519.pub", ".netrc", ".git-credentials", ".aws"]
)
def test_keys_in_a_checkout_reach_no_image_and_no_node(name: str, prepared: dict[str, Any]):
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not list(DEPLOY.glob("*.dockerignore")), "it would stand for the one that holds for every build"
    for patterns in (ignored, prepared["rsync_exclude"]):
        assert any(fnmatch.fnmatch(name, pattern.removeprefix("**/")) for pattern in patterns), patterns


@pytest.mark.parametrize(
    "name", ["key.pem", "tls.key", "gcp-credentials.json", "my-service-account.json", "auth_token"]
)
def test_more_keys_reach_no_image(name: str):
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert any(fnmatch.fnmatch(name, pattern.removeprefix("**/")) for pattern in ignored)


def test_ray_up_still_sends_its_own_keys(prepared: dict[str, Any]):
    """What is excluded is so from every transfer, that of the head's key and of the cluster's password, too."""
    for name in ("ray-autoscaler_1_us-east-1.pem", "ray_bootstrap_key.pem", "auth_token", "token"):
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in prepared["rsync_exclude"])

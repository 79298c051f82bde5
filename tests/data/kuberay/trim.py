"""Write ``crds.json`` from KubeRay's CRDs: ``python tests/data/kuberay/trim.py FOLDER``; see README.md.

Kept of ``ray.io_rayclusters.yaml`` and ``ray.io_rayjobs.yaml``: the schema of version v1, without descriptions, each
part that stands there several times once (2.3 MB become 50 KB; the schema of a pod stands there eight times).
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

KINDS = ("raycluster", "rayjob")
SHORT = 200
"""Parts of fewer characters stay where they are."""


def schema_of(path: Path) -> dict[str, Any]:
    """The schema of a CRD's version v1, without its descriptions."""
    versions = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["spec"]["versions"]
    (schema,) = (version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1")
    return without_descriptions(schema)


def without_descriptions(part: Any) -> Any:
    if isinstance(part, list):
        return [without_descriptions(item) for item in part]
    if isinstance(part, dict):
        # A property may be called description too; then it is no text.
        kept = {key: value for key, value in part.items() if key != "description" or not isinstance(value, str)}
        return {key: without_descriptions(value) for key, value in kept.items()}
    return part


def shared(schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas with references into ``$defs`` for the objects that stand in them more than once."""
    seen: Counter[str] = Counter()

    def look(part: Any) -> None:
        if isinstance(part, dict) and "properties" in part:
            seen[json.dumps(part)] += 1
        for item in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            look(item)

    look(schemas)
    names: dict[str, str] = {}
    parts: dict[str, Any] = {}

    def place(part: Any) -> Any:
        if isinstance(part, list):
            return [place(item) for item in part]
        if not isinstance(part, dict):
            return part
        text = json.dumps(part)
        if seen[text] < 2 or len(text) < SHORT:
            return {key: place(value) for key, value in part.items()}
        if text not in names:
            names[text] = f"part-{len(names)}"
            parts[names[text]] = {key: place(value) for key, value in part.items()}
        return {"$ref": f"#/$defs/{names[text]}"}

    return {**place(schemas), "$defs": parts}


if __name__ == "__main__":
    found = shared({kind: schema_of(Path(sys.argv[1]) / f"ray.io_{kind}s.yaml") for kind in KINDS})
    parts = [f'  "{name}": {json.dumps(part, separators=(",", ":"))}' for name, part in found.pop("$defs").items()]
    kinds = [f'"{kind}": {json.dumps(schema, separators=(",", ":"))}' for kind, schema in found.items()]
    text = ",\n".join(['"$defs": {\n' + ",\n".join(parts) + "\n}", *kinds])
    Path(__file__).with_name("crds.json").write_text("{" + text + "}\n")

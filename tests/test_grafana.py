"""deploy/grafana.json: a dashboard that Grafana can import, about metrics that the code declares."""

import json
import re
from itertools import combinations
from pathlib import Path

import jsonschema
import pytest

from curation.telemetry import metrics

ROOT = Path(__file__).parents[1]
BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
METERS = [value for value in vars(metrics).values() if isinstance(value, metrics.Meter)]
BY_NAME = {meter.name: meter for meter in METERS}
RAYS_TAGS = {"NodeAddress"}
SOURCE = {"const": {"type": "prometheus", "uid": "${datasource}"}}
SCHEMA = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "uid": {"type": "string", "maxLength": 40},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "title", "type", "datasource", "gridPos", "fieldConfig", "targets"],
                "properties": {
                    "type": {"enum": ["timeseries", "stat"]},
                    "datasource": SOURCE,
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 100},
                    },
                    "fieldConfig": {
                        "type": "object",
                        "required": ["defaults", "overrides"],
                        "properties": {"defaults": {"properties": {"unit": {"enum": ["short", "s", "rowsps"]}}}},
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["refId", "expr", "datasource", "legendFormat"],
                            "properties": {"datasource": SOURCE, "refId": {"pattern": "^[A-Z]$"}},
                        },
                    },
                },
            },
        },
    },
}


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_is_well_formed():
    jsonschema.validate(BOARD, SCHEMA)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for one, other in combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in BOARD["panels"])
    assert [item["name"] for item in BOARD["templating"]["list"]] == ["datasource", "run"]


@pytest.mark.parametrize("expression", [*expressions(), BOARD["templating"]["list"][1]["query"]])
def test_expressions_ask_for_declared_metrics_by_their_kind(expression: str):
    assert expression.count("(") == expression.count(")")
    uses = list(re.finditer(r"(?:(\w+)\()?ray_(curation_\w+)(\{[^}]*\})?(\[\S+?\])?", expression))
    assert uses
    for function, name, _, window in (use.groups() for use in uses):
        meter = BY_NAME[name]
        if function == "label_values":
            continue
        assert (function in ("rate", "increase") and window is not None) == (meter.kind != "gauge")
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert {tag.strip() for tag in grouped.split(",")} <= {"run", "stage", *meter.tags, *RAYS_TAGS}


def test_each_metric_is_shown():
    shown = "\n".join(expressions())
    for meter in METERS:
        assert f"ray_{meter.name}" in shown, meter.name


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: meter.name)
def test_names_have_their_units(meter):
    assert re.fullmatch(r"curation_[a-z_]+", meter.name)
    assert (meter.kind == "counter") == meter.name.endswith("_total")

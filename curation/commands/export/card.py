"""The model card of an exported student, in the format of the Hugging Face Hub."""

import re
from collections.abc import Mapping
from functools import cache

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from curation.json_types import JsonView
from curation.report.headline import format_points
from curation.report.html import format_duration, make_environment

METHODS = {"sft": "supervised fine-tuning", "grpo": "GRPO", "dpo": "DPO"}
PAPER = "https://arxiv.org/abs/2606.01000"


def format_card(lineage: JsonView) -> str:
    """Return the model card, made from the lineage alone."""
    card = ModelCard.from_template(_make_front_matter(lineage), template_str="---\n{{ card_data }}\n---\n")
    card.text = load_template("card.md.j2").render(
        lineage, paper=PAPER, method=METHODS.get(lineage["recipe"]["method"])
    )
    return str(card)


def _make_front_matter(lineage: JsonView) -> ModelCardData:
    """Return the card's metadata, without the base if it is not on the hub."""
    student, base, recipe = lineage["student"], lineage["base"], lineage["recipe"]
    is_adapter = student["kind"] == "adapter"
    accuracy = ((lineage["evaluation"] or {}).get("accuracy") or {}).get("student")
    parts = [lineage["run"]["name"], *([student["name"]] if student["name"] else []), student["arm"]]
    name = f"{'-'.join(parts)}-gen{student['generation']}"
    result = EvalResult(
        task_type="text-generation",
        dataset_type=lineage["data"]["domain"]["name"],
        dataset_name=f"test split of {lineage['run']['name']}",
        metric_type="accuracy",
        metric_value=None if accuracy is None else accuracy["value"],
    )
    sources = (str(source["path"]) for source in lineage["data"]["sources"].values())
    links = [re.match(r"(?:hf://|https://huggingface\.co/)datasets/([\w.-]+/[\w.-]+)", path) for path in sources]
    return ModelCardData(
        base_model=base["base"] if base["on_hub"] else None,
        base_model_relation=("adapter" if is_adapter else "finetune") if base["on_hub"] else None,
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["trust-curation", "weak-to-strong", recipe["method"], student["arm"], *(["lora"] if is_adapter else [])],
        datasets=sorted({link[1] for link in links if link}) or None,  # sources that are read from the hub
        model_name=name,
        eval_results=None if accuracy is None else [result],
    )


@cache
def load_template(name: str) -> Template:
    """Return a template of this folder, with the filters that all templates share."""
    made = make_environment("curation.commands.export", keep_trailing_newline=True)
    made.filters.update(
        share=format_share, number=format_metric, duration=format_duration, points=format_points, plain=format_setting
    )
    return made.get_template(name)


def format_share(estimate: JsonView | None) -> str:
    """Return a share with its interval and number of rows."""
    if estimate is None or estimate.get("value") is None:
        return "not measured"
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f}, n = {estimate['n']:,})"


def format_metric(estimate: JsonView | None) -> str:
    """Return a metric with its interval and number of rows."""
    if estimate is None or estimate.get("value") is None:
        return "not measured"
    bounds = "" if estimate["low"] is None else f"{estimate['low']:.3f} to {estimate['high']:.3f}, "
    return f"{estimate['value']:.3f} ({bounds}n = {estimate['n']:,})"


def format_setting(value: object) -> str:
    """Return a setting as text: mappings as ``key value`` pairs, nothing as ``none``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_setting(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(format_setting(item) for item in value) or "none"
    return "none" if value is None else str(value)

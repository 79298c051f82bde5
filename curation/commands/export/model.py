"""``curate export-student``: a student of a run as a folder with weights, a model card and its lineage."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from curation.commands.export.files import CARD, PAPER, describe, describe_files, is_on_hub, load_template, write_folder
from curation.commands.export.lineage import make_lineage, stop_lines
from curation.commands.export.student import Student, find_student
from curation.heavy import torch
from curation.json_types import Json, JsonView
from curation.models import load_configuration, load_model, load_tokenizer
from curation.models.own_code import get_hub_revision
from curation.refs import ModelRef
from curation.storage.cache import fetch_folder
from curation.storage.inside import require_enclosed
from curation.storage.paths import Place, to_place

METHODS = {"sft": "supervised fine-tuning", "grpo": "GRPO", "dpo": "DPO"}
LEFT_OUT = (CARD, "training.json")
"""Files of a saved student that are not exported: peft's empty card, and the record that is in the lineage."""


def export_student(
    run: Place,
    output: Place,
    *,
    arm: str | None,
    generation: int | None,
    student: str | None = None,
    merged: bool,
    force: bool,
    command: str,
) -> list[str]:
    """Write a student of a run to a folder; return sentences on what was written, and warnings.

    The arm is by default ``trust`` or the only one, the generation the last one, and the student the one that teaches
    the next generation. ``output`` is an empty or missing folder or, with ``force``, holds an earlier export.
    ``merged`` writes full weights if the student is an adapter. ``command`` is the command line, for the card.

    Raises:
        ExportError: there is no such student, the student is not trained, or ``output`` is taken or cannot be written.
        ModelError: the base does not load.
    """
    found = find_student(run, arm, generation, student)
    with write_folder(output, force=force) as folder:
        written = write_model(found, folder, output, merged=merged)
        lineage = make_lineage(found, written, command)
        describe(folder, lineage, format_card(lineage))
    words = [f"{output}: {written['kind']} of {found.stage} of {found.run}, with README.md and lineage.json"]
    if lineage["evaluation"] is None:
        words.append(
            f"warning: {run} has no numbers of this student, so the card has no test accuracy, purity or "
            "trust metrics; when `curate run` has ended, export again with --force"
        )
    return words + stop_lines(lineage)


def write_model(student: Student, folder: Path, output: Place, *, merged: bool) -> Json:
    """Write the student's weights to a folder that will become ``output``, and describe them.

    Return ``kind``, ``has_base`` (whether the adapter's base, which was merged for this run, is exported too, in
    ``base``), and ``files``.
    """
    model, has_base = student.model, False
    if merged and model.adapter is not None:
        dtype = getattr(load_configuration(model), "dtype", None) or torch.float32
        weights: Any = load_model(model)  # in float32, the adapter merged into the base; saved in the base's own type
        weights.to(dtype).save_pretrained(folder)
        load_tokenizer(model).save_pretrained(folder)
        return {"kind": "merged model", "has_base": False, "files": describe_files(folder)}
    require_enclosed(student.folder)
    source = fetch_folder(str(student.folder))
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if model.adapter is not None:
        base = model
        if has_base := to_place(model.base) == student.folder / "base":
            base = ModelRef(base=str(output.absolute() / "base"), adapter=model.adapter)
        revision = get_hub_revision(base) if is_on_hub(base) else None
        file = folder / "adapter_config.json"  # peft's own, which names the base
        settings = json.loads(file.read_text()) | {"base_model_name_or_path": base.base, "revision": revision}
        file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    kind = "full model" if model.adapter is None else "adapter"
    return {"kind": kind, "has_base": has_base, "files": describe_files(folder)}


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

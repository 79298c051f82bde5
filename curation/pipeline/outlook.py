"""Forecasts of a run from only its configuration and models: students' steps, types, lengths of prompts."""

from collections.abc import Iterator, Mapping, Sequence

from curation import models
from curation.config import LmStudentConfig, RunConfig, StudentConfig
from curation.config.base import count_share
from curation.domains import Example, attempt, get_domain
from curation.domains.given import as_asked
from curation.models.dtypes import AUTO, FLAGS, find_bfloat16_flag, resolve_dtype, takes_bfloat16_on_cpus
from curation.signals import label_request
from curation.teachers.prompts import tokenise

FEW = 50
"""Minimum number of optimizer steps; fewer hardly move a student from its base (200 rows in batches of 128 are two)."""


def iter_student_steps(config: RunConfig, num_pool: int) -> Iterator[str]:
    """Yield a line for each recipe of a run, a warning if it has few steps; none if only the labels decide the budget.

    ``num_pool``: rows of the pool of one generation.
    """
    budget = config.selection.budget
    if budget.n is not None:
        about, num_rows = "", budget.n
    elif budget.share is not None:
        about, num_rows = "about ", count_share(budget.share, num_pool)
    elif budget.oracle:
        about, num_rows = "at most ", min(budget.cap, num_pool)
    else:
        return
    recipes: dict[str, StudentConfig] = {"student": config.student} if config.generations else {}
    for generation in config.generations:
        recipes |= {f"student {name}": own.recipe or config.student for name, own in generation.students.items()}
    for name, recipe in recipes.items():
        if not isinstance(recipe, LmStudentConfig) or (steps := recipe.num_steps(num_rows)) is None:
            continue
        line = (
            f"{name}: {about}{num_rows:,} rows, global_batch_size {recipe.global_batch_size:,}: {about}{steps:,} "
            f"optimizer step{'s' if steps != 1 else ''}"
        )
        mend = "lower global_batch_size, give it more epochs, or select more rows"
        yield line if steps >= FEW else f"warning: {line}, which hardly move it from its base; {mend}"


def iter_type_lines(config: RunConfig) -> Iterator[str]:
    """Yield a line on the type in which each model answers if it is ``auto``, and one for bfloat16 on a slow CPU."""
    teacher, gpus = config.teacher, config.teacher.actors.num_gpus
    if not config.models:
        return
    if teacher.dtype == "bfloat16" and not gpus and find_bfloat16_flag() is None:
        yield (
            "teacher.dtype: bfloat16 takes several times as long as float32 on this processor, which has no "
            f"instructions for it ({', '.join(FLAGS)}); set auto, or actors.num_gpus"
        )
    if teacher.dtype != AUTO:
        return
    is_fast = not gpus and takes_bfloat16_on_cpus()
    roles: dict[str, list[str]] = {}
    for role, model in config.models.items():
        ref = None if model.path is None or not (gpus or is_fast) else models.pin_model(model)
        roles.setdefault(resolve_dtype(teacher, ref).dtype, []).append(role)
    words = "; ".join(f"{dtype} ({', '.join(of)})" for dtype, of in roles.items())
    why = "by config.json of each" if gpus else "since no GPU is asked for"
    if is_fast and "bfloat16" in roles:
        why = f"by config.json of each and the processor's {find_bfloat16_flag() or 'on which the run began'}"
    yield f"teacher.dtype: auto is {words}, {why} (actors.num_gpus: {gpus:g})"


def iter_long_prompts(config: RunConfig, examples: Mapping[str, Sequence[Example]]) -> Iterator[str]:
    """Yield a warning for each split with ``examples`` that, with an answer, exceed the teacher's context."""
    model, decoding = config.models.get("teacher"), config.teacher.decoding
    if model is None or model.path is None or model.allow_remote_code:
        return  # code of a model's own is not run to look
    ref = models.pin_model(model)
    longest = models.read_configuration(ref).get("max_position_embeddings")
    if longest is None:
        return
    tokenizer = models.read_tokenizer(ref)
    for split, rows in examples.items():
        domain = as_asked(get_domain(config.domain_of(split)), decoding)
        found = (attempt(label_request, domain, place, row)[0] for place, row in enumerate(rows))
        requests = [request for request in found if request is not None]
        asked = tokenise(tokenizer, requests, chat_template=config.teacher.chat_template)
        sizes = [len(row.prompt) + row.room(decoding.max_tokens) for row in asked]
        over = [size for size in sizes if size > longest]
        if over:
            yield (
                f"splits.{split}: {100 * len(over) / len(sizes):.1f} % of {len(sizes):,} rows seen cannot be asked: "
                f"prompt and answer need up to {max(over):,} tokens, and {ref.base} takes {longest:,}; cut their texts "
                "by a template, e.g. {{ text | truncate(4000) }}, lower teacher.decoding.max_tokens, or take a model "
                "of a longer context"
            )

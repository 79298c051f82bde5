"""Stages that read a server's answers by a model here, where ``teacher.reader`` names one."""

from typing import Any, cast

from curation.pipeline.generation_spec import GenerationSpec
from curation.rundir.graph import Out
from curation.stages.label import Label
from curation.stages.read import Read


def reading(generation: GenerationSpec, labelled: Label, split: str, **reducing: Any) -> Label | Read:
    """The stage that reads the answers of ``labelled``; itself, where no model reads them.

    ``reducing``: what takes the place of its states (``projection``, ``fitted``, ``sample``).
    """
    reader, endpoint = generation.helpers.reader, generation.config.teacher.endpoint
    if reader is None or endpoint is None:
        return labelled
    return Read(
        name=generation.name(f"read-{split}"),
        at=generation.at(split),
        examples=generation.tables[split],
        answers=labelled.out("labels"),
        domain=labelled.domain,
        teacher=reader,
        decoding=labelled.decoding,
        reads_numbers=not endpoint.top_logprobs,
        **reducing,
        num_rows=generation.sizes[split],
        **generation.settings,
    )


def bought(stage: Label | Read, labels: Out) -> Out:
    """The labels that further questions to the teacher are about: a server's before they were read."""
    return cast(Out, stage.answers) if isinstance(stage, Read) else labels

"""A scripted teacher whose first starts fail as a GPU without room does."""

from pathlib import Path

import torch

from curation.config import AskConfig
from curation.refs import ModelRef
from curation.registry import Backend
from curation.teachers.scripted import ScriptedTeacher

BACKEND = Backend("tests.curation.passes.failing_start:FailingStart", weights=False)


class FailingStart(ScriptedTeacher):
    """``teacher.options.fails`` starts fail; each adds a line to the file ``starts`` beside the script's log."""

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        assert config.scripted.log is not None
        starts = Path(config.scripted.log).with_name("starts")
        with starts.open("a") as file:
            file.write("start\n")
        if len(starts.read_text().splitlines()) <= config.options["fails"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        super().__init__(config, model)

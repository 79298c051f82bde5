"""A stage of a test, whose work is a function, and a run directory that a test begins."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from curation.config import RunConfig
from curation.pipeline.opened import OpenedRun, open_run
from curation.refs import TableRef
from curation.rundir.graph import Done, Out, Stage
from curation.rundir.hosts import Host


class Built(Stage):
    """A stage whose work is a function: ``work(task, **inputs, **settings)`` makes its outputs."""

    work: Callable[..., Done]
    inputs: Mapping[str, Any] = field()
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    host: Host | None = None

    @property
    def kind(self) -> str:
        """The module and name of the function."""
        return f"{self.work.__module__}.{self.work.__qualname__}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Inputs and settings, each as one mapping."""
        return {"inputs": self.inputs, "settings": self.settings}

    def run(self, task: Any) -> Done:
        """Call the function."""
        return self.work(task, **self.inputs, **self.settings)

    def table(self, *path: str) -> Out:
        """An output that is a table."""
        return Out(stage=self, path=path, read=TableRef.from_json)


def saved_run(config: RunConfig) -> OpenedRun:
    """Open a run and write its definition to its directory."""
    opened = open_run(config)
    opened.save()
    return opened

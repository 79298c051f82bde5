"""Merges several graphs into one: stages with the same work on the same inputs become one.

Graphs of one run with different settings give different stages the same name. Here a stage's name ends with a digest of
its work and of all that leads to it (``gen-0/trust@1f3a...``), so that equal stages have equal names. Graphs that are
merged later in the same directory thus share stages, too.
"""

from dataclasses import replace

from curation.refs import fingerprint
from curation.rundir.graph import Out, Stage, to_plain_json, with_outs


class Merged:
    """The stages of several graphs, each once."""

    def __init__(self) -> None:
        self._by_name: dict[str, Stage] = {}
        self._of: dict[Stage, Stage] = {}

    def out(self, out: Out) -> Out:
        """Return the same output of the merged stage."""
        return replace(out, stage=self.stage(out.stage))

    def stage(self, stage: Stage) -> Stage:
        """Return the merged stage that does the same work on the same inputs."""
        if stage not in self._of:
            merged = replace(stage, needs=with_outs(stage.needs, self.out), **with_outs(stage.arguments, self.out))
            key = [stage.kind, stage.revision, to_plain_json(with_outs([merged.inputs, merged.needs], str), {})]
            made = replace(merged, name=f"{stage.name}@{fingerprint([stage.name, *key])[:8]}")
            self._of[stage] = self._by_name.setdefault(made.name, made)
        return self._of[stage]

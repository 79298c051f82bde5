"""One graph out of several: stages of the same work on the same inputs become one.

Graphs of one run with different settings give different stages the same name. Here a stage's name ends with a digest of
what it does and of all that leads to it (``gen-0/trust@1f3a...``), so that equal stages have equal names, in one
directory also those of graphs that are merged later.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from curation.refs import Ref, fingerprint
from curation.rundir.graph import Out, Stage, plain


class Merged:
    """The stages of several graphs, each once."""

    def __init__(self) -> None:
        self._by_name: dict[str, Stage] = {}
        self._of: dict[Stage, Stage] = {}

    def out(self, out: Out) -> Out:
        """The same output, of the merged stage."""
        return replace(out, stage=self.stage(out.stage))

    def stage(self, stage: Stage) -> Stage:
        """The merged stage that does the same."""
        if stage not in self._of:
            merged = replace(stage, needs=with_outs(stage.needs, self.out), **with_outs(stage.arguments, self.out))
            key = [stage.kind, stage.revision, plain(with_outs([merged.inputs, merged.needs], str), {})]
            made = replace(merged, name=f"{stage.name}@{fingerprint([stage.name, *key])[:8]}")
            self._of[stage] = self._by_name.setdefault(made.name, made)
        return self._of[stage]


def with_outs(value: object, change: Callable[[Out], Any]) -> Any:
    """A value with every output in it, at any depth, replaced by what ``change`` makes of it."""
    if isinstance(value, Out):
        return change(value)
    if isinstance(value, Mapping):
        return {key: with_outs(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_outs(part, change) for part in value)
    if is_dataclass(value) and not isinstance(value, type | Ref):
        return replace(value, **{item.name: with_outs(getattr(value, item.name), change) for item in fields(value)})
    return value

"""The states of a run's stages: the records of a run directory compared with what the graph now requires."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from curation.rundir.graph import Absent, Known, Outputs, Skipped, Stage, Unknown, make_cache_key
from curation.rundir.manifest import Manifest

NUM_SHOWN = 5
"""Maximum number of changed inputs of a stage to list one by one."""

NEW = "not done yet"
NOT_SET = "not set"
"""Words for a value that a key leaves out because it is the default."""

State = Literal["done", "changed", "lost", "damaged", "new", "waits", "skipped"]


class Status(NamedTuple):
    """The state of a stage; ``why`` says what changed or is lost, what it waits for, or which output is missing."""

    stage: Stage
    state: State
    why: str

    @property
    def is_settled(self) -> bool:
        """Whether the stage is done or has nothing to do."""
        return self.state in ("done", "skipped")

    @property
    def words(self) -> str:
        """The state in words."""
        words = {
            "done": "done",
            "new": NEW,
            "changed": f"changed: {self.why}",
            "lost": f"to be made again: {self.why}",
            "damaged": f"damaged: {self.why}",
            "waits": self.why,
        }
        return words.get(self.state, f"nothing to do: {self.why}")


def iter_statuses(
    stages: Iterable[Stage], manifest: Manifest, known: dict[str, Outputs | Skipped] | None = None
) -> Iterator[Status]:
    """Yield the state of each of the ordered ``stages``, from the records of a run directory, and fill ``known``.

    A stage that waits for another may turn out to be unchanged if the other one makes the same outputs as before.
    """
    known = {} if known is None else known
    for stage in stages:
        status = find_status(stage, known, manifest)
        if status.state == "done":
            known[stage.name] = manifest.stages[stage.name].outputs
        elif status.state == "skipped":
            known[stage.name] = Skipped(status.why)
        yield status


def find_status(stage: Stage, known: Known, manifest: Manifest) -> Status:
    """Return the state of one stage, given the outputs known so far."""
    try:
        key = make_cache_key(stage, known)
    except Absent as absent:
        out, made = absent.out, known[absent.out.stage.name]
        if isinstance(made, Skipped):
            return Status(stage, "skipped", made.why)
        why: Mapping[str, str | None] = made.get("absent") or {}
        reasons = (why.get(".".join(out.path[:end])) for end in range(len(out.path), 0, -1))  # the innermost part first
        otherwise = f"{out.stage.name} made no {' '.join(out.path).replace('_', ' ')}"
        return Status(stage, "skipped", next(filter(None, reasons), otherwise))
    except Unknown as unknown:
        return Status(stage, "waits", f"waits for {unknown.out.stage.name}")
    record = manifest.stages.get(stage.name)
    if record is None:
        return Status(stage, "new", "")
    if record.fingerprint == manifest.digest(key):
        if (lost := manifest.lost.get(stage.name)) is not None:
            return Status(stage, "damaged" if lost.broken else "lost", lost.words)
        return Status(stage, "done", "")
    changes = list_differences(record.inputs, key)
    more = [f"and {len(changes) - NUM_SHOWN} more"] if len(changes) > NUM_SHOWN else []
    return Status(stage, "changed", "; ".join([*changes[:NUM_SHOWN], *more]))


def list_differences(before: object, now: object, path: str = "") -> list[str]:
    """Return the leaves in which two keys differ, as ``a.b was X, is Y``; a missing leaf has its default."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [
            line
            for key in sorted({*before, *now})
            for line in list_differences(
                before.get(key, NOT_SET), now.get(key, NOT_SET), f"{path}.{key}" if path else key
            )
        ]
    return [] if before == now else [f"{path} was {before}, is {now}"]

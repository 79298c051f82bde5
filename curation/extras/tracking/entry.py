"""The entry of a run in a tracker: its settings, main numbers, training curves of students, and report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from curation.escaping import escape_text
from curation.json_types import JsonView
from curation.refs import fingerprint


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A finished run as a tracker records it."""

    id: str
    """Digest of the settings and the run directory, so that a repeated command writes the same entry."""
    name: str
    settings: JsonView
    """The nested configuration, without ``tracking``, whose address may contain a password."""
    numbers: Mapping[str, float]
    """Numbers by name, e.g. ``gen-0/trust/purity``; interval and number of rows end in ``_low``, ``_high``, ``_n``."""
    curves: Mapping[str, Sequence[tuple[int, float]]]
    """Points of each student's training by name, e.g. ``gen-0/trust/training/loss``, in ascending order of steps. A
    step is an optimizer step, or a logging interval if the training method records no steps."""
    tags: Mapping[str, str]
    """The run directory, the domain, and the software versions."""
    files: Mapping[str, str]
    """Texts of the report's files by file name."""

    def inert(self) -> "TrackedRun":
        """Return the entry with control characters, and others that a store may refuse, escaped."""
        return replace(self, **{item.name: _make_inert(getattr(self, item.name)) for item in fields(self)})

    def flat_settings(self) -> dict[str, str]:
        """Return the settings as a flat mapping from dotted keys to texts."""
        return dict(_iter_leaves(self.settings, ""))


def make_entry(report: JsonView, directory: str, files: Mapping[str, str]) -> TrackedRun:
    """Return the entry of a run's report (``curation.report.collect``)."""
    settings = {key: value for key, value in report["config"].items() if key != "tracking"}
    return TrackedRun(
        id=fingerprint({"directory": directory, "settings": settings})[:16],
        name=report["name"],
        settings=settings,
        numbers=dict(_iter_numbers(report)),
        curves=dict(_iter_curves(report)),
        tags={"run_dir": directory, "domain": report["domain"], **report["versions"]},
        files=files,
    )


def _iter_numbers(report: JsonView) -> Iterator[tuple[str, float]]:
    yield "seconds", sum(stage["seconds"] for stage in report["stages"])
    for generation in report["generations"]:
        at = f"gen-{generation['index']}"
        yield f"{at}/num_pool", generation["num_pool"]
        yield from _estimate(f"{at}/teacher/accuracy", generation["teacher"]["test"])
        yield from _estimate(f"{at}/teacher/pool_accuracy", generation["teacher"]["pool"])
        yield from _estimate(f"{at}/base/accuracy", generation["base"])
        for arm in generation["arms"]:
            place = f"{at}/{arm['name']}"
            yield f"{place}/num_selected", arm["num_selected"]
            yield from _estimate(f"{place}/purity", arm["purity"])
            yield from _iter_student(place, arm)
        for student in generation["students"]:
            yield from _estimate(f"{at}/students/{student['name']}/base/accuracy", student["base"])
            for arm in student["arms"]:
                yield from _iter_student(f"{at}/students/{student['name']}/{arm['name']}", arm)
        for rows in ("validation", "pool"):
            for view, table in generation["trust"].get(rows, {}).items():
                for function, found in table["functions"].items():
                    for number in ("auc", "ece", "brier"):
                        yield from _estimate(f"{at}/trust/{function}/{rows}_{view}_{number}", found[number])
                yield from _estimate(f"{at}/trust/constant/{rows}_{view}_brier", table["constant"]["brier"])
    for line in [] if report["chain"] is None else report["chain"]["lines"]:
        for index, point in enumerate(line["accuracy"]):
            yield from _estimate(f"chain/{line['kind']}/{line['arm']}/gen-{index}/accuracy", point)


def _iter_student(place: str, arm: JsonView) -> Iterator[tuple[str, float]]:
    """Yield the accuracy and the recovery of an arm's student."""
    yield from _estimate(f"{place}/accuracy", arm["accuracy"])
    if arm["recovery"] is not None:
        yield f"{place}/recovery", arm["recovery"]
        low_high = arm["recovery_interval"] or ()
        yield from zip((f"{place}/recovery_low", f"{place}/recovery_high"), low_high, strict=False)


def _iter_curves(report: JsonView) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for generation in report["generations"]:
        at = f"gen-{generation['index']}"
        trained = {f"{at}/{arm}": training for arm, training in generation["training"].items()}
        for student in generation["students"]:
            trained |= {f"{at}/students/{student['name']}/{arm}": own for arm, own in student["training"].items()}
        for place, training in trained.items():
            curves = dict(training["curves"])
            steps = [round(step) for step in curves.pop("step")]
            for name, values in curves.items():
                if points := [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]:
                    yield f"{place}/training/{name}", points


def _estimate(name: str, estimate: JsonView | None) -> Iterator[tuple[str, float]]:
    """Yield an estimate's value, interval and number of rows; nothing if the estimate is undefined."""
    if estimate is not None and estimate["value"] is not None:
        yield name, estimate["value"]
        yield from ((f"{name}_{key}", estimate[key]) for key in ("low", "high", "n") if estimate[key] is not None)


def _make_inert(value: object) -> Any:
    if isinstance(value, str):
        return escape_text(value, page=True)
    if isinstance(value, Mapping):
        return {_make_inert(key): _make_inert(part) for key, part in value.items()}
    return [_make_inert(part) for part in value] if isinstance(value, list) else value


def _iter_leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _iter_leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)

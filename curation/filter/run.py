"""Runs a filter: opens its output, runs the missing stages, and describes the result in ``filter.json``."""

from typing import NamedTuple

from curation.config.filter import FilterConfig
from curation.errors import ShiftError
from curation.filter.described import CUT
from curation.filter.opened import OpenedFilter, check, open_filter
from curation.filter.output import DATA, Content, load_content, publish
from curation.json_types import Json
from curation.pipeline.work import at_work
from curation.telemetry.console import say
from curation.telemetry.metrics import Telemetry

FORMAT = 1


class Filtered(NamedTuple):
    """The result of a filter."""

    content: Content
    did: bool
    alarm: str | None
    """Clear difference of the newest round's rows to those that trust was fitted on, in words, or None if there is
    none or ``on_shift`` is ``ignore``."""


def run_filter(config: FilterConfig, *, recut: bool = False, wait: bool = False) -> Filtered:
    """Label new rows of the pool, write the rows that pass, and return the result.

    ``recut`` makes the cut again over all labelled rows. If another driver works on the output, this one raises an
    error or, with ``wait``, begins when the other has ended.

    Raises:
        UserError: package, pool, output and rule do not fit each other, or nothing passes.
        ShiftError: ``on_shift`` is ``fail``, and rows that are not written yet differ clearly from the package's.
    """
    package, teacher = check(config)
    with at_work(
        config.directory, lambda guard: open_filter(config, package, teacher, recut=recut, guard=guard), wait=wait
    ) as (opened, run):
        did = not opened.is_settled()
        run.do(opened.described.before_writing)
        _warn_of_shift(opened)
        run.do(opened.stages)
        before = load_content(config.output_directory)
        content = collect_content(opened)
        publish(config.output_directory, content, before, opened.manifest.guard)
    shift = content["rounds"][-1]["shift"]
    alarm = shift["warning"] if shift is not None and shift["alarm"] and config.on_shift != "ignore" else None
    return Filtered(content, did, alarm)


def _warn_of_shift(opened: OpenedFilter) -> None:
    """Warn of unwritten rounds that differ from the package's rows; raise on an alarm with ``on_shift: fail``."""
    manifest = opened.manifest
    for name, stages in opened.described.rounds.items():
        if stages.shift is None or stages.write.name in manifest.stages:
            continue
        found = manifest.stages[stages.shift.name].outputs["shift"]
        Telemetry(run=opened.name, stage=stages.shift.name).tell_shift(found)
        if found["warning"] is not None:
            say(f"round {name}: {found['warning']}")
        if found["alarm"] and opened.config.on_shift == "fail":
            raise ShiftError(
                f"round {name}: {found['warning']} Nothing of it was written (on_shift: fail); with --on-shift warn or "
                "ignore the same command writes it, and labels nothing again"
            )


def collect_content(opened: OpenedFilter) -> Content:
    """Return the manifest of an output whose stages are all done."""
    config, manifest, rounds = opened.config, opened.manifest, list[Content]()
    cut = {**manifest.stages[CUT].outputs, "seed": config.seed}
    all_counts, columns, written = list[Json](), list[str](), list[Content]()
    for rnd in opened.rounds:
        stages = vars(opened.described.rounds[rnd.name])
        records = {name: manifest.stages[stage.name] for name, stage in stages.items() if stage is not None}
        counts, write = records["label"].outputs["counts"], records["write"]
        rounds.append(
            {
                "round": rnd.name,
                "started": records["pool"].started,
                "files": [{"path": file.path, "rows": file.num_rows} for file in rnd.files],
                "labelled": counts["rows"] - sum(counts["errors"].values()) - counts["dropped"],
                **opened.gate.collect([counts], False),
                **{name: counts[name] for name in ("rows", "unparsed", "errors", "prompt_tokens", "output_tokens")},
                "kept": write.rows,
                "shift": records["shift"].outputs["shift"] if "shift" in records else None,
                "seconds": {name: record.seconds for name, record in records.items()},
            }
        )
        all_counts.append(counts)
        columns = write.outputs["columns"]
        for file in write.outputs["files"]:
            written.append({**file, "path": f"{DATA}/{file['path']}", "round": rnd.name})
    return {
        "format": FORMAT,
        "package": {"uri": config.package, "digest": opened.package.digest},
        "pool": config.pool.path,
        "data": config.output.format,
        "columns": columns,
        "cut": cut,
        **opened.gate.collect(all_counts, True),
        "rows": sum(item["rows"] for item in rounds),
        "kept": sum(item["kept"] for item in rounds),
        "rounds": rounds,
        "files": written,
    }

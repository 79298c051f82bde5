"""``curate status`` of a filter: its stages, the rows of each round and the cut that let them in, and what waits."""

from collections.abc import Iterator
from typing import Any

from curation.commands import status
from curation.commands.filter.summary import rule_words
from curation.config.filter import FilterConfig
from curation.errors import UserError
from curation.pipeline.filter.opening import Opened, look
from curation.pipeline.filter.output import Content, load_content
from curation.rundir.graph import Status, statuses
from curation.rundir.manifest import Manifest


def status_lines(config: FilterConfig) -> Iterator[str]:
    """Lines on what is done, what is running, what was written, and which files of the pool are new."""
    manifest = Manifest.load(config.directory)
    if not manifest.identity:
        yield f"{config.output_directory}: no filter here yet; `curate filter` starts it"
        return
    opened, unknown = _opened(config)
    yield from status.lines_of(config.output_directory, manifest, _states(opened), unknown)
    content = load_content(config.output_directory)
    if content is not None:
        yield from _written(content)
    if opened is not None and (waiting := _waiting(opened, manifest)) is not None:
        paths, rows = waiting["files"], waiting["rows"]
        more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
        words = f"{rows:,} rows in {len(paths):,} new files ({', '.join(paths[:3])}{more})"
        yield f"waiting: {words}; `curate filter` adds them"


def status_json(config: FilterConfig) -> dict[str, Any]:
    """The same as JSON."""
    manifest = Manifest.load(config.directory)
    opened, unknown = _opened(config) if manifest.identity else (None, None)
    content = load_content(config.output_directory)
    return {
        **status.json_of(config.output_directory, manifest, _states(opened), unknown),
        "written": content and {name: content[name] for name in ("cut", "superseded", "rows", "kept", "rounds")},
        "waiting": None if opened is None else _waiting(opened, manifest),
    }


def is_finished(config: FilterConfig) -> bool:
    """Whether a filter has nothing left to do."""
    manifest = Manifest.load(config.directory)
    found = _states(_opened(config)[0]) if manifest.identity else []
    return bool(found) and all(status.is_settled for status in found)


def _opened(config: FilterConfig) -> tuple[Opened | None, str | None]:
    """The output as `curate filter` would find it, or why it would refuse it."""
    try:
        return look(config), None
    except UserError as error:
        return None, str(error)


def _states(opened: Opened | None) -> list[Status]:
    return [] if opened is None else list(statuses(opened.described.all, opened.manifest.records))


def _written(content: Content) -> Iterator[str]:
    cut = content["cut"]
    for item in content["rounds"]:
        errors = sum(item["errors"].values())
        later = "" if item["round"] in cut["rounds"] else ", which was made before"
        yield (
            f"round {item['round']}: {item['rows']:,} rows in {len(item['files']):,} files, {item['labelled']:,} "
            f"labelled, {errors:,} error rows; {item['kept']:,} let in by cut {item['cut']}{later}"
        )
    yield f"cut {cut['id']} {rule_words(cut['rule'])}: trust {cut['lowest_trust']:.4f} and more"


def _waiting(opened: Opened, manifest: Manifest) -> dict[str, Any] | None:
    """The files that no round has yet, and their rows."""
    files = [file for rnd in opened.rounds if rnd.name not in manifest.files for file in rnd.files]
    return {"files": [file.path for file in files], "rows": sum(file.num_rows for file in files)} if files else None

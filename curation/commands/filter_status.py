"""``curate status`` of a filter: its stages, the rows and the cut of each round, and files that are not read yet."""

from collections.abc import Iterator

from curation.commands.filter import describe_rule, describe_shift
from curation.commands.status import Shown, compute_spent, describe_spent
from curation.config.filter import FilterConfig
from curation.errors import UserError
from curation.filter import opened
from curation.filter.output import Content, load_content
from curation.rundir.manifest import Manifest


def look(config: FilterConfig) -> Shown:
    """Return the state of a filter, or the reason why ``curate filter`` would refuse to resume it."""
    home, manifest = config.output_directory, Manifest.load(config.directory)
    found, unknown = None, None
    if manifest.identity:
        try:
            found = opened.look(config)
        except UserError as error:
            unknown = str(error)
    content = load_content(home)
    files = (
        [] if found is None else [file for rnd in found.rounds if rnd.name not in manifest.files for file in rnd.files]
    )
    paths, rows = [file.path for file in files], sum(file.num_rows for file in files)
    more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
    words = (
        f"waiting: {rows:,} rows in {len(paths):,} new files ({', '.join(paths[:3])}{more}); `curate filter` adds them"
    )
    spent = compute_spent(config)
    written = content and {name: content[name] for name in ("cut", "superseded", "rows", "kept", "rounds")}
    return Shown(
        home=home,
        manifest=manifest,
        states=[] if found is None else found.statuses,
        unknown=unknown,
        nothing_yet=f"{home}: no filter here yet; `curate filter` starts it",
        further=[
            *(() if content is None else _describe_rounds(content)),
            *([words] if files else []),
            *describe_spent(spent),
        ],
        parts={"written": written, "waiting": {"files": paths, "rows": rows} if files else None, "endpoint": spent},
    )


def _describe_rounds(content: Content) -> Iterator[str]:
    cut = content["cut"]
    for item in content["rounds"]:
        errors = sum(item["errors"].values())
        later = "" if item["round"] in cut["rounds"] else ", which was made before"
        yield (
            f"round {item['round']}: {item['rows']:,} rows in {len(item['files']):,} files, {item['labelled']:,} "
            f"labelled, {errors:,} error rows; {item['kept']:,} let in by cut {item['cut']}{later}"
        )
        alarms = [test["warning"] for test in (item["shift"], item["foreign"]) if test is not None and test["alarm"]]
        if alarms or (words := describe_shift(item)):
            yield f"round {item['round']}: shift: {'ALARM: ' + ' '.join(alarms) if alarms else words}"
    yield f"cut {cut['id']} {describe_rule(cut['rule'])}: trust {cut['lowest_trust']:.4f} and more"

"""``curate filter``: makes its configuration from a file or from options, and describes its result."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from curation.commands.status import Shown
from curation.config.filter import FilterConfig, keep_of
from curation.config.load import load_filter
from curation.errors import ConfigError, UserError
from curation.features import features, list_flags
from curation.filter import opened
from curation.filter.output import Content, load_content
from curation.filter.run import Filtered
from curation.json_types import Json, JsonView
from curation.registry import load_code
from curation.rundir.manifest import Manifest

_KEYS = {
    "output": "output.path",
    "form": "output.format",
    "on_shift": "on_shift",
    "allow_code": "allow_code",
    "anyway": "anyway",
}
"""The key that each option of ``curate filter`` sets."""
_RULES: Mapping[str, Callable[[Any], Json]] = {
    "keep": keep_of,
    "threshold": lambda trust: {"threshold": trust},
    "certified": lambda alpha: {"certified": {"alpha": alpha}},
}
"""The section ``keep`` by each option that chooses a rule."""
NUM_ROUNDS = 10
"""Maximum number of newest rounds of which a line tells."""


def make_filter_config(inputs: Sequence[str], overrides: Sequence[str], options: JsonView) -> FilterConfig:
    """Return the configuration of a filter, given as ``CONFIG`` or as ``PACKAGE POOL`` with options, by their names."""
    if len(inputs) not in (1, 2):
        raise ConfigError(f"takes a CONFIG, or PACKAGE and POOL; found {len(inputs)} arguments")
    given = {key: options[name] for name, key in _KEYS.items() if options[name] not in (None, False, ())}
    given |= {name: {} for name in list_flags() if options[name]}
    rules = [name for name in _RULES if options[name] is not None]
    if len(rules) > 1:
        raise ConfigError(f"filter: {' and '.join(f'--{name}' for name in rules)} are two rules; give one")
    for name in rules:
        given["keep"] = _RULES[name](options[name])
    if len(inputs) == 1:
        return load_filter(inputs[0], overrides, given)
    if "output.path" not in given:
        raise ConfigError("filter: no output is given; add -o OUT")
    if not rules:
        raise ConfigError("filter: no rule for the rows to keep is given; add --keep, --threshold or --certified")
    return load_filter(None, overrides, {"package": inputs[0], "pool.path": inputs[1], **given})


def describe_filtered(filtered: Filtered, home: str) -> Iterator[str]:
    """Yield lines on whether something was done, what an output has, and where that is listed."""
    content = filtered.content
    if not filtered.did:
        yield f"nothing to do: the pool has no new files since round {content['rounds'][-1]['round']}"
    yield from describe_content(content)
    yield f"manifest: {home}/filter.json names {len(content['files']):,} {content['data']} files"


def describe_content(content: Content) -> Iterator[str]:
    """Yield lines on the rows read, labelled and kept, in all and of the newest rounds, and on tokens and seconds."""
    cut, rounds = content["cut"], content["rounds"]
    totals: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for item in rounds:
        totals.update({name: value for name, value in item.items() if isinstance(value, int)})
        errors.update(item["errors"])
        seconds.update(item["seconds"])
    dropped = content["rows"] - totals["labelled"] - errors.total()
    words = ", ".join(f"{kind} {count:,}" for kind, count in errors.most_common())
    yield (
        f"rows: {content['rows']:,} read from {sum(len(item['files']) for item in rounds):,} files in "
        f"{len(rounds)} {'round' if len(rounds) == 1 else 'rounds'}, {totals['labelled']:,} labelled "
        f"({totals['unparsed']:,} without a readable label), "
        f"{f'{dropped:,} dropped after their prompt, ' if dropped else ''}"
        f"{errors.total():,} error rows{f' ({words})' if words else ''}"
    )
    for feature in features().values():
        if feature.of == "filter" and feature.lines is not None:
            yield from load_code(feature.lines)(content)
    times = ", ".join(f"{name} {value:,.1f} s" for name, value in seconds.items())
    yield f"teacher: {totals['prompt_tokens']:,} prompt tokens, {totals['output_tokens']:,} output tokens; {times}"
    for item in rounds[-NUM_ROUNDS:]:
        yield (
            f"round {item['round']}: {item['rows']:,} rows in {len(item['files']):,} files, {item['labelled']:,} "
            f"labelled, {sum(item['errors'].values()):,} error rows; {item['kept']:,} let in by cut {item['cut']}"
            f"{'' if item['round'] in cut['rounds'] else ', which was made before'}"
        )
        alarms = [test["warning"] for test in (item["shift"], item["foreign"]) if test is not None and test["alarm"]]
        if alarms or (words := _describe_shift(item)):
            yield f"round {item['round']}: shift: {'ALARM: ' + ' '.join(alarms) if alarms else words}"
    labelled, of = totals["labelled"] + dropped, "the labelled and dropped" if dropped else "the labelled"
    share = f" ({100 * content['kept'] / labelled:.2f} % of {of})" if labelled else ""
    yield f"kept: {content['kept']:,}{share}"
    if (risk := cut["risk"]) is not None:
        yield f"guarantee: {risk['guarantee']}"
    ((name, value),) = cut["rule"].items()
    rule = f"alpha {value['alpha']:g}, delta {value['delta']:g}" if isinstance(value, Mapping) else f"{value:,}"
    yield f"cut {cut['id']} ({name} {rule}): trust {cut['lowest_trust']:.4f} and more"


def _describe_shift(item: JsonView) -> str:
    """Return in words how a round's rows, and its kept rows, differ from labelled rows; empty if untested."""
    shift, foreign = item["shift"], item["foreign"]
    words = [] if shift is None or not shift["in_words"] else [str(shift["in_words"])]
    if (passing := foreign["passing"]) is not None:
        share = passing["share"]
        words.append(
            f"of {share['n']:,} rows that pass the cut {100 * share['value']:.0f} % [{100 * share['low']:.0f}, "
            f"{100 * share['high']:.0f}] are unlike the labelled rows that pass it"
        )
    return "; ".join(words)


def look(config: FilterConfig) -> Shown:
    """Return the state of a filter, or the reason why ``curate filter`` would refuse to resume it."""
    home, manifest = config.output_directory, Manifest.load(config.directory)
    found, unknown = None, None
    if manifest.identity:
        try:
            found = opened.look(config)
        except UserError as error:
            unknown = str(error)
    content, further = load_content(home), list[str]()
    new = [] if found is None else [rnd for rnd in found.rounds if rnd.name not in manifest.files]
    waiting: Json | None = None
    if files := [file for rnd in new for file in rnd.files]:
        waiting = {"files": [file.path for file in files], "rows": sum(file.num_rows for file in files)}
        more = f", ... and {len(files) - 3:,} more" if len(files) > 3 else ""
        further.append(
            f"waiting: {waiting['rows']:,} rows in {len(files):,} new files "
            f"({', '.join(waiting['files'][:3])}{more}); `curate filter` adds them"
        )
    written = content and {name: content[name] for name in ("cut", "superseded", "rows", "kept", "rounds")}
    return Shown(
        config=config,
        home=home,
        manifest=manifest,
        states=[] if found is None else found.statuses,
        unknown=unknown,
        nothing_yet=f"{home}: no filter here yet; `curate filter` starts it",
        further=[*([] if content is None else describe_content(content)), *further],
        parts={"written": written, "waiting": waiting},
    )

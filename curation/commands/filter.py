"""``curate filter``: makes its configuration from a file or from options, and describes its result."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from curation.commands.printing import render_text
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
"""Maximum number of rounds, the newest, that have a line of their own."""


def make_filter_config(inputs: Sequence[str], overrides: Sequence[str], options: JsonView) -> FilterConfig:
    """Return the configuration of a filter, given as ``CONFIG`` or as ``PACKAGE POOL`` with options, by their names."""
    if len(inputs) not in (1, 2):
        raise ConfigError(f"takes a CONFIG, or PACKAGE and POOL; found {len(inputs)} arguments")
    settings = {key: options[name] for name, key in _KEYS.items() if options[name] not in (None, False, ())}
    settings |= {name: {} for name in list_flags() if options[name]}
    rules = [name for name in _RULES if options[name] is not None]
    if len(rules) > 1:
        raise ConfigError(f"filter: {' and '.join(f'--{name}' for name in rules)} are two rules; give one")
    for name in rules:
        settings["keep"] = _RULES[name](options[name])
    if len(inputs) == 1:
        return load_filter(inputs[0], overrides, settings)
    if "output.path" not in settings:
        raise ConfigError("filter: no output is given; add -o OUT")
    if not rules:
        raise ConfigError("filter: no rule for the rows to keep is given; add --keep, --threshold or --certified")
    return load_filter(None, overrides, {"package": inputs[0], "pool.path": inputs[1], **settings})


def describe_filtered(filtered: Filtered, home: str) -> Iterator[str]:
    """Yield lines on whether something was done, what an output has, and where that is listed."""
    content = filtered.content
    if not filtered.did:
        yield f"nothing to do: the pool has no new files since round {content['rounds'][-1]['round']}"
    yield from describe_content(content)
    yield f"manifest: {home}/filter.json names {len(content['files']):,} {content['data']} files"


def describe_content(content: Content) -> list[str]:
    """Return lines on the rows read, labelled and kept, in all and of the newest rounds, and on tokens and seconds."""
    totals: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for item in content["rounds"]:
        totals.update({name: value for name, value in item.items() if isinstance(value, int)})
        errors.update(item["errors"])
        seconds.update(item["seconds"])
    of_filters = [
        feature.lines for feature in features().values() if feature.of == "filter" and feature.lines is not None
    ]
    text = render_text(
        "curation.commands:filter.j2",
        content,
        totals=totals,
        errors=errors.most_common(),
        seconds=seconds,
        lines=[line for path in of_filters for line in load_code(path)(content)],
        most=NUM_ROUNDS,
    )
    return text.splitlines()


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
    written = content and {name: content[name] for name in ("cut", "rows", "kept", "rounds")}
    return Shown(
        config=config,
        home=home,
        manifest=manifest,
        states=[] if found is None else found.statuses,
        unknown=unknown,
        nothing_yet=f"{home}: no filter here yet; `curate filter` starts it",
        further=[] if content is None else describe_content(content),
        parts={"written": written},
    )

"""Loading of configurations from YAML: overrides, and errors that name the nearest known key.

A file may build on others (``curation.config.files``). A key that a file sets and nothing in its run reads is refused,
because the user expects an effect. Sections for a part that the run leaves out (a student without ``generations``,
tests without a test split) are accepted: they are read as soon as the part is added.
"""

import contextlib
import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from curation.arms import ARMS, PAPER_TRUST, STRATUM, TRUST, Fitted, find_fitted, find_signals
from curation.config import RunConfig, StudentConfig, TrustConfig, TuneConfig
from curation.config.files import parse_yaml, read, with_folder
from curation.config.filter import FilterConfig
from curation.config.models import find_student_section
from curation.config.trust import find_read_keys
from curation.errors import ConfigError
from curation.json_types import Json, JsonView
from curation.registry import BUDGETS
from curation.storage.paths import Place, to_place

T = TypeVar("T", bound=BaseModel)
KEPT = "config.yaml"
"""The file in a run directory with the configuration of its last run."""
FILTERS = "package"
"""The key that every configuration of a filter has, and that none of a run has."""
OURS = frozenset({"endpoint", "given", "scripted", "transformers", "vllm"})
"""Built-in backends: the keys that they read are known, and they take no ``options``."""
_ABSENT = object()
Key = tuple[str, ...]
"""A key after those of its sections; not a dotted text, since a name such as ``my.module:function`` has dots."""


def load_config(path: str | Place, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the configuration in a YAML file, with ``a.b=c`` overrides (values are YAML).

    Paths of sources and models are relative to the folder of the file that gives them (overrides: of ``path``), which
    may be in an object store. A ``config.yaml`` that a run left in its directory names that directory, wherever it is.

    Raises:
        ConfigError: the file or a base is missing or no YAML mapping, a rule is broken, or a key is unknown.
    """
    raw, place = read(path), to_place(path)
    if FILTERS in raw and "sources" not in raw:
        raise ConfigError(f"{path}: configures a filter, as it names a {FILTERS}; give it to `curate filter`")
    if "run_dir" in raw and place.name == KEPT and place.with_name("manifest.json").is_file():
        raw["run_dir"] = str(place.absolute().parent)  # it may have been moved or copied
        _drop_unknown_keys(RunConfig, raw)
    alone, further = copy.deepcopy(raw), dict[str, Any]()
    for override in overrides:
        put_override(raw, override, place.resolve().parent)
        put_override(further, override, place.resolve().parent)
    config = parse_config(raw, str(path))
    runs = [config]
    if overrides:  # a key of the file that an override leaves unread is no mistake in the file
        with contextlib.suppress(ConfigError):
            runs.append(parse_config(alone))
    refuse_unread(alone, runs, str(path))
    refuse_unread(further, [config], "--set")
    return config


def _drop_unknown_keys(model: type[BaseModel], raw: Json) -> None:
    """Remove keys of an earlier version from a kept configuration, so that what it made can still be looked at."""
    try:
        model.model_validate(raw)
    except ValidationError as error:
        for item in error.errors():
            section: Any = raw
            for part in item["loc"][:-1]:
                is_there = part in section if isinstance(section, dict) else isinstance(section, list)
                section = section[part] if is_there else {}
            if item["type"] == "extra_forbidden" or item["loc"][:1] == ("tracking",):  # trackers had sections once
                section.pop(item["loc"][-1], None)


def as_config(given: RunConfig | Mapping[str, object] | str | PathLike[str]) -> RunConfig:
    """Return the configuration that a Python caller gives: a ``RunConfig``, a YAML file's path, or a mapping of keys.

    ``ConfigError``: as for :func:`load_config`, or it is none of these.
    """
    if isinstance(given, RunConfig):
        return given
    if isinstance(given, str | PathLike):
        return load_config(str(given))
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"config: a {type(given).__name__} is not a configuration; give a mapping with the keys of a configuration "
            "file, the path of such a file, or what curation.config.load.load_config returns"
        )
    config = parse_config(with_folder(dict(given), Path.cwd()))
    refuse_unread(given, [config], "config")
    return config


def load_filter(
    path: str | Place | None, overrides: Sequence[str] = (), given: Mapping[str, object] | None = None
) -> FilterConfig:
    """Return the configuration of a filter: a YAML file, or none, then ``given`` keys, then ``a.b=c`` overrides.

    Paths of package, pool, model and calibration are relative to the file's folder; ``given`` ones, and that of the
    output, to the working directory. ``ConfigError``: as for :func:`load_config`.
    """
    raw = {} if path is None else read(path, mend="docs/operations.md shows one")
    if "sources" in raw and FILTERS not in raw:
        raise ConfigError(f"{path}: configures a run, as it has sources; give it to `curate run`")
    if path is not None and to_place(path).name == KEPT and to_place(path).with_name("manifest.json").is_file():
        _drop_unknown_keys(FilterConfig, raw)
    for key, value in (given or {}).items():
        put_key(raw, key, with_folder(value, Path.cwd()), key)
    for override in overrides:
        put_override(raw, override, Path.cwd() if path is None else to_place(path).resolve().parent)
    return validate_keys(FilterConfig, raw, "filter" if path is None else str(path))


def is_filter(path: str | Place) -> bool:
    """Return whether a YAML file configures a filter: it names a package."""
    return FILTERS in read(path)


def parse_config(raw: Mapping[str, object], where: str = "config") -> RunConfig:
    """Return the configuration in a mapping; error messages name the key, after ``where``."""
    return validate_keys(RunConfig, raw, where)


def validate_keys(model: type[T], raw: Mapping[str, object], where: str) -> T:
    """Return the section that a mapping describes; ``ConfigError`` names, after ``where``, a key that breaks a rule."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = [_explain(model, item, raw) for item in error.errors()]
        raise ConfigError(f"{where}: {'; '.join(problems)}") from error


def put_override(raw: Json, text: str, folder: Place) -> None:
    """Set the key of an override ``a.b=value`` in a mapping; paths in it are relative to a folder."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r}: is not of the form a.b=value")
    try:
        parsed = parse_yaml(value)
    except ConfigError as error:
        raise ConfigError(f"--set {text!r}: {error}") from error
    put_key(raw, key, with_folder(parsed, folder), f"--set {text!r}")


def nest_keys(keys: Mapping[str, object]) -> Json:
    """Return keys written as ``a.b`` as nested sections."""
    nested: Json = {}
    for key, value in keys.items():
        put_key(nested, key, value, key)
    return nested


def put_key(raw: Json, key: str, value: object, where: str) -> None:
    """Set the key ``a.b`` of a mapping, in which a part may be a position of a list; ``where`` begins messages."""
    node: Any = raw
    parts: list[Any] = key.split(".")
    for number, part in enumerate(parts):
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise ConfigError(
                    f"{where}: {part!r} is not one of the {len(node)} positions of the list, counted from 0"
                )
            parts[number] = int(part)
        if number < len(parts) - 1:
            node = node.setdefault(part, {}) if isinstance(node, dict) else node[int(part)]
            if not isinstance(node, dict | list):
                raise ConfigError(f"{where}: {part} is a value, not a section")
    node[parts[-1]] = value


def _explain(root: type[BaseModel], error: JsonView, raw: Any) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location) or "(top level)"
    if error["type"] == "extra_forbidden":
        known = _find_known_keys(root, location[:-1], raw)
        near = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("missing", "value_error"):
        return f"{key}: {message}" if location else message
    if error["type"] == "string_type" and isinstance(error["input"], bool | int | float):
        message += "; put it in quotes"
    return f"{key}: {error['input']!r}: {message}"


def _find_known_keys(root: type[BaseModel], location: Sequence[str], raw: Any) -> list[str]:
    """Return the keys of the section at a location, following models through optional, list and mapping types."""
    model: type[BaseModel] | None = root
    inside = False  # in a list or mapping: the next part is an index or a name, not one of our keys
    for part in location:
        if inside:
            inside = False
            continue
        fields = {(field.alias or name): field for name, field in model.model_fields.items()} if model else {}
        if part not in fields:
            return []
        annotation = fields[part].annotation
        model, inside = _find_model(annotation), get_origin(annotation) in (tuple, list, dict)
        if model is StudentConfig:
            model = find_student_section(raw.get("student"))
    return sorted((field.alias or name) for name, field in model.model_fields.items()) if model else []


def _find_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _find_model(part)) is not None), None)


def refuse_unread(given: Mapping[str, object], runs: Sequence[RunConfig], where: str) -> None:
    """Refuse keys of a file that none of its runs (the variants of an ablation, else one) reads.

    Args:
        given: the keys that are set.
        runs: the configurations that they make.
        where: the file, which begins the message.

    Raises:
        ConfigError: names the key, and what reads it.
    """
    if RunConfig.model_fields.keys() <= given.keys():
        return  # a run wrote it, with every key
    found = [dict(_iter_unread(run)) for run in runs]
    named: dict[str, list[str]] = {}
    for key, readers in found[0].items():
        value: object = given
        for part in key:
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        is_set = value is not _ABSENT and (value not in (None, {}) or key[0] == "trust")  # else null is left out
        if is_set and all(key in of_run for of_run in found):
            named.setdefault(readers, []).append(".".join(key))
    if named:
        listed = "; ".join(f"{', '.join(keys)}: not read in this run, but by {who}" for who, keys in named.items())
        raise ConfigError(f"{where}: {listed}; leave the key out, or add what reads it")


def _iter_unread(run: RunConfig) -> Iterator[tuple[Key, str]]:
    """Yield each key that nothing in a run reads, with what reads it."""
    teacher, selection = run.teacher, run.selection
    backends = {asked.backend for asked in (teacher, teacher.ask, teacher.reading) if asked is not None}
    is_known = backends <= OURS
    signals = find_signals(selection.used)
    asked = {signal.asks for signal in signals.values()} | {signal.section for signal in signals.values()}
    fitted = {*find_fitted(selection.used), run.trust.kind}
    arms = [ARMS[name] for name in selection.arms]
    read: dict[Key, tuple[bool, str]] = {
        ("teacher", "vllm"): ("vllm" in backends or not is_known, "backend vllm"),
        ("teacher", "scripted"): ("scripted" in backends or not is_known, "backend scripted"),
        ("teacher", "options"): (not is_known, "backends of your own"),
        ("signals", "second_teacher"): ("second_teacher" in asked, "the arm ensemble"),
        ("signals", "reward"): ("reward" in asked, "the arm reward"),
        ("signals", "self_consistency"): ("self_consistency" in asked, "the arm self_consistency"),
        **{("signals", "models", name): (name in asked, "an arm that asks it") for name in run.signals.models},
        **{("signals", "options", name): (name in signals, "an arm with that signal") for name in run.signals.options},
        **{("trust", "options", name): (name in fitted, "a function of that name") for name in run.trust.options},
        ("selection", "difficulty_bins"): (any(STRATUM in arm.rule.reads for arm in arms), "stratified arms"),
        ("selection", "gold_rollouts"): (any(arm.gold for arm in arms), "arms that train on gold labels"),
    }
    for name, rule in BUDGETS.items():
        is_read = rule == selection.budget.declared
        read |= {("selection", "budget", key): (is_read, f"budget {name}") for key in rule.keys or ()}
    if not run.trust.search and run.tune == TuneConfig():  # a search may try kinds that read others
        kinds = find_fitted(fitted - {PAPER_TRUST} | {run.trust.kind})
        known = {*TrustConfig.RESOURCES, "kind", "search", "options"}.union(*map(find_read_keys, kinds.values()))
        by_kind = {name: find_read_keys(trust) for name, trust in TRUST.items() if isinstance(trust, Fitted)}
        for key in TrustConfig.model_fields:
            readers = ", ".join(name for name, keys in by_kind.items() if key in keys)
            read[("trust", key)] = key in known, f"trust.kind {readers}"
    yield from ((key, readers) for key, (is_read, readers) in read.items() if not is_read)

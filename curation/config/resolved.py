"""Descriptions of settings that a file leaves to defaults, and warnings about values that cannot work."""

import json
import re
from collections.abc import Iterator, Mapping

from curation.arms import PAPER_TRUST, find_fitted
from curation.config.base import Section, TrainSection
from curation.config.defaults import GENERIC, Defaults, DomainTraits, fill_defaults, find_traits
from curation.config.endpoint import describe_endpoint, iter_endpoint_warnings
from curation.config.evaluation import EvaluationConfig
from curation.config.inputs import DomainConfig
from curation.config.models import InitConfig
from curation.config.run import RunConfig
from curation.config.teacher import DecodingConfig
from curation.config.trust import DEFAULT_ROW, PAPER, TrustConfig, find_read_keys, with_row
from curation.features import iter_found
from curation.registry import BACKENDS

SHORT = 64
"""Minimum number of tokens in which a model not trained to be brief can reason and state a final answer."""
_FAMILIES = {"qwen3": r"qwen-?3(?![.\d])", "gemma3": r"gemma-?3(?![.\d])", "llama3": r"llama-?3(?!\d)"}
_ALWAYS = ("temperature", "max_tokens", "stop")


def describe_resolved(config: RunConfig) -> Iterator[str]:
    """Yield a line with values and origin for each group of settings with defaults, and one on chat templates."""
    domain = _find_traits(config.domain).defaults
    if (given := config.teacher.given) is not None:
        graded = "gold labels" if given.grade is None else f"column {given.grade}"
        yield f"teacher: labels are column {given.completion}, {_read(config, given.confidence)}; graded by {graded}"
    else:
        teacher = DecodingConfig.model_validate(domain.get("teacher", {}).get("decoding", {}))
        text = _format_decoding(config.teacher.decoding)
        if config.teacher.endpoint is not None:
            yield describe_endpoint(config)
            if (reader := config.teacher.reader) is not None:
                numbers = "states alone" if config.teacher.endpoint.top_logprobs else "states and log-probabilities"
                yield f"its answers are read once by the reader ({reader.backend}), for {numbers}"
        yield f"teacher.decoding: {text} ({_describe_origin(domain, _find_changed(config.teacher.decoding, teacher))})"
    runs, changed = config.evaluation.num_runs, _find_changed_tests(config.evaluation, domain)
    text = _format_decoding(config.evaluation.decoding)
    yield f"evaluation: {runs} run{'s'[: runs > 1]}, {text} ({_describe_origin(domain, changed)})"
    for name, decoding in config.evaluation.also.items():
        runs = config.evaluation.runs(decoding)
        yield f"evaluation.also.{name}: {runs} run{'s'[: runs > 1]}, {_format_decoding(decoding)}"
    yield _trust(config, domain)
    yield _describe_chat(config)


def _trust(config: RunConfig, domain: Defaults) -> str:
    """Return the kind of the trust function, with its row of the paper's table if the kind reads one."""
    trust, kind = config.trust, config.trust.kind
    fitted = find_fitted([kind])[kind]
    states = PAPER["states"] if kind == PAPER_TRUST else trust.states
    changed = _find_changed(trust, TrustConfig.model_validate({"kind": kind, "preset": trust.preset, "states": states}))
    if "preset" not in find_read_keys(fitted):
        further = f" (from the file: {', '.join(changed)})" if changed else ""
        return f"trust: {kind}{further}"
    model = config.teacher.model_dump(include={"model"})
    of_domain = with_row({"trust": {"preset": DEFAULT_ROW, **domain.get("trust", {}), "kind": kind}, "teacher": model})
    if of_domain["trust"]["preset"] == trust.preset:
        return f"trust: {kind}, preset {trust.preset} ({_describe_origin(domain, changed)})"
    return f"trust: {kind}, preset {trust.preset} (from the file{': '[: 2 * bool(changed)]}{', '.join(changed)})"


def _read(config: RunConfig, numbers: tuple[str, ...]) -> str:
    """Describe the reader of labels that came with the rows, if any, and the inputs of trust."""
    reader = config.teacher.reader
    if reader is None:
        return f"no model is asked; trust reads {', '.join(numbers)}"
    inputs = ", ".join((*numbers, *config.trust.states, "log-probabilities"))
    return f"read once by the reader ({reader.backend}); trust reads {inputs}"


def iter_warnings(config: RunConfig) -> Iterator[str]:
    """Yield warnings about valid settings that cannot work, such as answers that are cut before their label."""
    splits = {split: config.domain_of(split) for split in config.splits.named() if split not in ("adapt", "shots")}
    labelled = {
        domain.name: domain for split, domain in splits.items() if split != "test" and _find_traits(domain).reasons
    }
    yield from iter_endpoint_warnings(config.teacher.endpoint)
    yield from iter_found(config, "warnings")
    model = config.teacher.loaded
    init, brief = None if model is None else model.init, config.teacher.adapt is not None
    backend = config.teacher.backend
    scripted = config.teacher.endpoint is None and backend in BACKENDS and not BACKENDS[backend].weights
    for name in labelled:
        if init is None and config.teacher.given is None:
            yield from _cut("teacher.decoding", config.teacher.decoding, name, brief=brief or scripted)
    traits = _find_traits(config.domain_of("pool"))
    if traits.generates and init is not None and config.teacher.given is None:
        yield from _check_room("teacher", config.teacher.decoding, init)
    if not config.generations:
        return
    if config.splits.test is None:
        yield (
            "splits.test: is missing, so students are trained but not tested; if you add a test split to the finished "
            "run, only its own stages run"
        )
        return
    inits = [base.init for base, _ in config.students.values()]
    tested, decoding = config.domain_of("test"), config.evaluation.decoding
    answers = _find_traits(tested)
    if answers.reasons and None in inits:
        yield from _cut("evaluation.decoding", decoding, tested.name, brief=brief)
    if answers.generates and (smallest := min(filter(None, inits), key=lambda init: init.max_positions, default=None)):
        yield from _check_room("evaluation", decoding, smallest)


def _cut(key: str, decoding: DecodingConfig, domain: str, *, brief: bool) -> Iterator[str]:
    """Yield warnings about answers with reasoning. ``brief``: no model answers, or one trained to answer at once."""
    ends = [stop for stop in decoding.stop if "\n" in stop and not stop.strip()]
    if ends:
        yield (
            f"{key}.stop: {json.dumps(ends[0])} ends every answer of domain {domain} at its first line, before the "
            f"answer at its end; set stop: []"
        )
    if decoding.max_tokens < SHORT and not brief:
        yield (
            f"{key}.max_tokens: {decoding.max_tokens} cuts answers of domain {domain} off in the middle of their "
            "reasoning; leave it out for the domain's own"
        )


def _check_room(section: str, decoding: DecodingConfig, init: InitConfig) -> Iterator[str]:
    if decoding.max_tokens >= init.max_positions:
        yield (
            f"{section}.decoding.max_tokens: {decoding.max_tokens} leaves no room for a prompt in a model from scratch "
            f"of max_positions {init.max_positions}, so that every row fails; set a lower max_tokens"
        )


def _find_traits(domain: DomainConfig) -> DomainTraits:
    return find_traits(domain.name, domain.options)


def _format_decoding(decoding: DecodingConfig) -> str:
    """Return the keys worth showing: those of ``_ALWAYS``, and those that differ from their neutral value."""
    neutral, parts = DecodingConfig(), []
    for key in DecodingConfig.model_fields:
        value = getattr(decoding, key)
        if key in _ALWAYS or value != getattr(neutral, key):
            shown = value if isinstance(value, str) else json.dumps(list(value)) if key == "stop" else f"{value:g}"
            parts.append(f"{key} {shown}")
    return ", ".join(sorted(parts, key=lambda part: not part.startswith("temperature")))


def _find_changed(found: Section, default: Section) -> list[str]:
    silent = {"chat_template", *TrainSection.RESOURCES}
    return [
        key for key in type(found).model_fields if key not in silent and getattr(found, key) != getattr(default, key)
    ]


def _find_changed_tests(found: EvaluationConfig, domain: Defaults) -> list[str]:
    """Return the keys of tests that the file changes; a greedy test is compared with the domain's test made greedy."""
    values = domain.get("evaluation", {})
    greedy = found.decoding.temperature == 0 != values.get("decoding", {}).get("temperature", 0)
    if greedy:
        values = fill_defaults({"evaluation": {"decoding": {"temperature": 0}}}, domain)["evaluation"]
    default = EvaluationConfig.model_validate(values)
    changed = (["temperature"] if greedy else []) + _find_changed(found.decoding, default.decoding)
    return [*changed, *(["num_runs"] if found.num_runs != default.num_runs else [])]


def _describe_origin(domain: Defaults, changed: list[str]) -> str:
    base = "general defaults, the domain names none" if domain is GENERIC else "from the domain"
    return f"{base}; from the file: {', '.join(changed)}" if changed else base


def _describe_chat(config: RunConfig) -> str:
    """Describe where chat templates are used, and suggest the ``chat_preset`` that fits a model's path."""
    on = {
        "teacher": config.teacher.chat_template,
        "student": config.student.chat_template,
        "evaluation": config.evaluation.chat_template,
    }
    text, preset = f"chat_template: {_format_switches(on)}", config.chat_preset
    if preset is not None:
        changed = [section for section, value in config.CHAT_PRESETS[preset].items() if on[section] != value]
        further = f"; from the file: {', '.join(changed)}" if changed else ""
        return f"{text} (from chat_preset: {preset}{further})"
    found = {role: _find_family(model.path) for role, model in config.models.items() if model.path}
    hints = [
        f"{role} names {family}, with which the paper has {_format_switches(config.CHAT_PRESETS[family])}: "
        f"chat_preset: {family}"
        for role, family in found.items()
        if family is not None and (role == "teacher" or role.startswith("student"))
    ]
    return f"{text} ({'; '.join(['from the file' if any(on.values()) else 'off unless set', *hints])})"


def _find_family(path: str) -> str | None:
    """Return the one family of ``CHAT_PRESETS`` named by the last part of a model's path; None for none or several."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    named = [family for family, pattern in _FAMILIES.items() if re.search(pattern, name)]
    return named[0] if len(named) == 1 else None


def _format_switches(on: Mapping[str, bool]) -> str:
    return ", ".join(f"{section} {'on' if value else 'off'}" for section, value in on.items())

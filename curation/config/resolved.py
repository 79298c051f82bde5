"""Descriptions of settings that a file leaves to defaults, and warnings about values that cannot work."""

import json
import re
from collections.abc import Iterator, Mapping

from curation.arms import PAPER_TRUST, find_fitted
from curation.config.base import Section, TrainSection
from curation.config.defaults import GENERIC, Defaults, fill_defaults
from curation.config.endpoint import iter_endpoint_warnings
from curation.config.evaluation import EvaluationConfig
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
    domain, teacher, evaluation = config.domain.traits.defaults, config.teacher, config.evaluation
    if (given := teacher.given) is not None:
        graded = "gold labels" if given.grade is None else f"column {given.grade}"
        if teacher.reader is None:
            read = f"no model is asked; trust reads {', '.join(given.confidence)}"
        else:
            inputs = ", ".join((*given.confidence, *config.trust.states, "log-probabilities"))
            read = f"read once by the reader ({teacher.reader.backend}); trust reads {inputs}"
        yield f"teacher: labels are column {given.completion}, {read}; graded by {graded}"
    else:
        default = DecodingConfig.model_validate(domain.get("teacher", {}).get("decoding", {}))
        origin = _describe_origin(domain, _find_changed(teacher.decoding, default))
        if (server := teacher.endpoint) is not None:
            path, price = "chats" if teacher.chat_template else "completions", server.price
            cost = "no price is given"
            if price is not None:
                limit = "no limit" if server.limit is None else f"at most {server.limit:g}"
                cost = f"{price.input:g} and {price.output:g} per million tokens, {limit}"
            yield (
                f"teacher: {server.model} of {server.url} (kind {server.kind}, {path}), {server.concurrency} questions "
                f"at once per actor; {cost}"
            )
            if teacher.reader is not None:
                numbers = "states alone" if server.top_logprobs else "states and log-probabilities"
                yield f"its answers are read once by the reader ({teacher.reader.backend}), for {numbers}"
        yield f"teacher.decoding: {_format_decoding(teacher.decoding)} ({origin})"

    # A greedy test is compared with the domain's test made greedy.
    tests = domain.get("evaluation", {})
    greedy = evaluation.decoding.temperature == 0 != tests.get("decoding", {}).get("temperature", 0)
    if greedy:
        tests = fill_defaults({"evaluation": {"decoding": {"temperature": 0}}}, domain)["evaluation"]
    default_tests = EvaluationConfig.model_validate(tests)
    changed = (["temperature"] if greedy else []) + _find_changed(evaluation.decoding, default_tests.decoding)
    changed += ["num_runs"] if evaluation.num_runs != default_tests.num_runs else []
    runs, text = evaluation.num_runs, _format_decoding(evaluation.decoding)
    yield f"evaluation: {runs} run{'s'[: runs > 1]}, {text} ({_describe_origin(domain, changed)})"
    for name, decoding in evaluation.also.items():
        runs = evaluation.runs(decoding)
        yield f"evaluation.also.{name}: {runs} run{'s'[: runs > 1]}, {_format_decoding(decoding)}"
    yield _describe_trust(config, domain)
    yield _describe_chat(config)


def _describe_trust(config: RunConfig, domain: Defaults) -> str:
    """Return the kind of the trust function, with its row of the paper's table if the kind reads one."""
    trust, kind = config.trust, config.trust.kind
    states = PAPER["states"] if kind == PAPER_TRUST else trust.states
    changed = _find_changed(trust, TrustConfig.model_validate({"kind": kind, "preset": trust.preset, "states": states}))
    named = ", ".join(changed)
    if "preset" not in find_read_keys(find_fitted([kind])[kind]):
        return f"trust: {kind} (from the file: {named})" if changed else f"trust: {kind}"
    model = config.teacher.model_dump(include={"model"})
    of_domain = with_row({"trust": {"preset": DEFAULT_ROW, **domain.get("trust", {}), "kind": kind}, "teacher": model})
    origin = f"from the file: {named}" if changed else "from the file"
    if of_domain["trust"]["preset"] == trust.preset:
        origin = _describe_origin(domain, changed)
    return f"trust: {kind}, preset {trust.preset} ({origin})"


def iter_warnings(config: RunConfig) -> Iterator[str]:
    """Yield warnings about valid settings that cannot work, such as answers that are cut before their label."""
    splits = {split: config.domain_of(split) for split in config.splits.named() if split not in ("adapt", "shots")}
    reasoned = dict.fromkeys(
        domain.name for split, domain in splits.items() if split != "test" and domain.traits.reasons
    )
    yield from iter_endpoint_warnings(config.teacher.endpoint)
    yield from iter_found(config, "warnings")
    teacher, model = config.teacher, config.teacher.loaded
    init, brief = None if model is None else model.init, teacher.adapt is not None
    if teacher.given is None and init is None:
        scripted = teacher.endpoint is None and teacher.backend in BACKENDS and not BACKENDS[teacher.backend].weights
        for name in reasoned:
            yield from _check_length("teacher.decoding", teacher.decoding, name, brief=brief or scripted)
    if teacher.given is None and init is not None and splits["pool"].traits.generates:
        yield from _check_room("teacher", teacher.decoding, init)
    if not config.generations:
        return
    if config.splits.test is None:
        yield (
            "splits.test: is missing, so students are trained but not tested; if you add a test split to the finished "
            "run, only its own stages run"
        )
        return
    inits = [base.init for base, _ in config.students.values()]
    traits, decoding = splits["test"].traits, config.evaluation.decoding
    if traits.reasons and None in inits:
        yield from _check_length("evaluation.decoding", decoding, splits["test"].name, brief=brief)
    if traits.generates and (smallest := min(filter(None, inits), key=lambda init: init.max_positions, default=None)):
        yield from _check_room("evaluation", decoding, smallest)


def _check_length(key: str, decoding: DecodingConfig, domain: str, *, brief: bool) -> Iterator[str]:
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
    """Return the keys in which two sections differ, apart from resources and chat templates."""
    keys = [key for key in type(found).model_fields if key not in {"chat_template", *TrainSection.RESOURCES}]
    return [key for key in keys if getattr(found, key) != getattr(default, key)]


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
    hints = []
    for role, model in config.models.items():
        if model.path is None or not (role == "teacher" or role.startswith("student")):
            continue
        name = model.path.rstrip("/").rpartition("/")[2].lower()
        named = [family for family, pattern in _FAMILIES.items() if re.search(pattern, name)]
        if len(named) == 1:
            switches = _format_switches(config.CHAT_PRESETS[named[0]])
            hints.append(f"{role} names {named[0]}, with which the paper has {switches}: chat_preset: {named[0]}")
    return f"{text} ({'; '.join(['from the file' if any(on.values()) else 'off unless set', *hints])})"


def _format_switches(on: Mapping[str, bool]) -> str:
    return ", ".join(f"{section} {'on' if value else 'off'}" for section, value in on.items())

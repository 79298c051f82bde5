"""Descriptions of settings that a file leaves to defaults, and warnings about values that cannot work."""

import ipaddress
import json
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from curation.arms import find_fitted
from curation.config.models import InitConfig
from curation.config.run import RunConfig
from curation.config.teacher import DecodingConfig
from curation.config.trust import find_read_keys
from curation.features import iter_found
from curation.registry import BACKENDS

SHORT = 64
"""Minimum number of tokens in which a model not trained to be brief can reason and state a final answer."""
_ALWAYS = ("temperature", "max_tokens", "stop")


def describe_resolved(config: RunConfig) -> Iterator[str]:
    """Yield a line with the values of each group of settings with defaults."""
    teacher, evaluation, trust = config.teacher, config.evaluation, config.trust
    if (given := teacher.given) is not None:
        graded = "gold labels" if given.grade is None else f"column {given.grade}"
        asked = ", no model is asked" if teacher.reader is None else ""
        yield f"teacher: labels are column {given.completion}{asked}; graded by {graded}"
    else:
        if (server := teacher.endpoint) is not None:
            path, price = "chats" if teacher.chat_template else "completions", server.price
            limit = "no limit" if server.limit is None else f"at most {server.limit:g}"
            cost = "no price is given"
            if price is not None:
                cost = f"{price.input:g} and {price.output:g} per million tokens, {limit}"
            yield (
                f"teacher: {server.model} of {server.url} (kind {server.kind}, {path}), {server.concurrency} questions "
                f"at once per actor; {cost}"
            )
        yield f"teacher.decoding: {_format_decoding(teacher.decoding)}"
    if teacher.reader is not None:
        yield f"teacher.reader: reads each answer once ({teacher.reader.backend})"
    also = {f"evaluation.also.{name}": decoding for name, decoding in evaluation.also.items()}
    for key, decoding in {"evaluation": evaluation.decoding, **also}.items():
        runs = evaluation.runs(decoding) if key != "evaluation" else evaluation.num_runs
        yield f"{key}: {runs} run{'s'[: runs > 1]}, {_format_decoding(decoding)}"
    has_preset = "preset" in find_read_keys(find_fitted([trust.kind])[trust.kind])
    inputs = ", ".join(trust.inputs)
    yield f"trust: {trust.kind}{f', preset {trust.preset}' if has_preset else ''}; reads {inputs or 'all numbers'}"
    in_turns = (teacher.chat_template, config.student.chat_template, evaluation.chat_template)
    named = zip(("teacher", "student", "evaluation"), in_turns, strict=True)
    switches = (f"{key} {'on' if is_on else 'off'}" for key, is_on in named)
    yield f"chat_template: {', '.join(switches)}"


def iter_warnings(config: RunConfig) -> Iterator[str]:
    """Yield warnings about valid settings that cannot work, such as answers that are cut before their label."""
    splits = {split: config.domain_of(split) for split in config.splits.named() if split not in ("adapt", "shots")}
    reasoned = dict.fromkeys(
        domain.name for split, domain in splits.items() if split != "test" and domain.traits.reasons
    )
    if (server := config.teacher.endpoint) is not None:
        if server.key_env is not None and not os.environ.get(server.key_env):
            yield (
                f"teacher.endpoint.key_env: the environment variable {server.key_env} is not set here; set it where "
                "the teacher runs, before Ray starts there"
            )
        if server.key_env is not None and server.url.startswith("http://") and not _is_loopback(server.url):
            yield (
                f"teacher.endpoint.url: {server.url} is not encrypted, so that the key of {server.key_env} and all "
                "questions go there as plain text; write https://, or leave key_env out if the server needs no key"
            )
        if server.price is not None and server.limit is None:
            yield "teacher.endpoint.limit: is not set, so that nothing limits what the run may spend; set an amount"
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


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


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

"""Refusal of keys that a file sets and no stage of its run reads, since who sets a key expects an effect.

The readers of a key are known in sections with kinds: for ``trust`` from a line of ``curation.arms.TRUST``, for
``teacher`` from the backend, for ``signals`` and ``selection`` from the arms and the budget's rule. Sections of a part
that a run leaves out (a student without ``generations``, tests without a test split) are not refused, since they are
read as soon as it is there.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from curation.arms import ARMS, PAPER_TRUST, STRATUM, TRUST, Fitted, find_fitted
from curation.config.run import RunConfig
from curation.config.trust import TrustConfig, find_read_keys
from curation.config.tune import TuneConfig
from curation.errors import ConfigError
from curation.registry import BUDGETS

OURS = frozenset({"auto", "endpoint", "given", "scripted", "transformers", "vllm"})
"""Built-in backends, whose keys are known, and which take no ``options``."""


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
    unread = {key: why for key, why in found[0].items() if all(key in of_run for of_run in found)}
    named: dict[str, list[str]] = {}
    for key in filter(partial(_is_set, given), unread):
        named.setdefault(unread[key], []).append(key)
    if named:
        raise ConfigError(f"{where}: " + "; ".join(f"{', '.join(keys)}: {why}" for why, keys in named.items()))


def _iter_unread(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield each key that nothing in a run reads, with the reason and a fix."""
    teacher, selection = run.teacher, run.selection
    if not run.trust.search and run.tune == TuneConfig():  # a search may try kinds that read others
        kinds = {*find_fitted(selection.used)} - {PAPER_TRUST} | {run.trust.kind}
        read = {*TrustConfig.RESOURCES, "kind", "search", "options"}
        read = read.union(*map(find_read_keys, find_fitted(kinds).values()))
        fitted = {name: find_read_keys(trust) for name, trust in TRUST.items() if isinstance(trust, Fitted)}
        for key in [key for key in TrustConfig.model_fields if key not in read]:
            others = ", ".join(name for name, keys in fitted.items() if key in keys)
            why = f"not read by trust.kind {run.trust.kind}, but by {others}; leave it out, or set another kind"
            yield f"trust.{key}", why
    backends = {teacher.backend, *([] if teacher.reader is None else [teacher.reader.backend])}
    if backends <= OURS:  # what a backend of one's own reads is not known
        if not backends & {"vllm", "auto"}:
            yield "teacher.vllm", f"not read by backend {teacher.backend}, but by vllm; leave it out"
        if "scripted" not in backends:
            yield "teacher.scripted", f"not read by backend {teacher.backend}, but by scripted; leave it out"
        yield "teacher.options", f"not read by backend {teacher.backend}, but by backends of your own; leave it out"
    signals = [signal for arm in selection.used if (signal := ARMS[arm].signal) is not None]
    asked = {signal.asks for signal in signals} | {signal.section for signal in signals}
    keys = {"second_teacher": "ensemble", "reward": "reward", "self_consistency": "self_consistency"}
    for key in keys.keys() - asked:
        yield f"signals.{key}", f"no arm asks for it; leave it out, or add the arm {keys[key]}"
    for name in run.signals.models.keys() - asked:
        yield f"signals.models.{name}", "no arm asks for it; leave it out, or add an arm that does"
    if not any(STRATUM in ARMS[arm].rule.reads for arm in selection.arms):
        yield "selection.difficulty_bins", "no arm is stratified; leave it out, or add the arm naive_stratified"
    if not any(ARMS[arm].gold for arm in selection.arms):
        yield "selection.gold_rollouts", "no arm trains on gold labels; leave it out, or add the arm ground_truth"
    own = {key: name for name, rule in BUDGETS.items() for key in rule.keys or ()}
    for key in own.keys() - set(selection.budget.declared.keys or ()):
        why = f"not read by the budget {selection.budget.rule}, but by {own[key]}; leave it out"
        yield f"selection.budget.{key}", why


def _is_set(given: Mapping[str, object], key: str) -> bool:
    """Return whether a file sets the key ``a.b``; outside ``trust`` a null or empty section counts as left out."""
    node: object = given
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return node not in (None, {}) or key.startswith("trust.")

"""Refusal of keys that a file sets and no part of its run reads, since who sets a key expects an effect.

Sections of a part that a run leaves out (a student without ``generations``, tests without a test split) are not
refused, since they are read as soon as it is there.
"""

from collections.abc import Iterator, Mapping, Sequence

from curation.arms import ARMS, PAPER_TRUST, STRATUM, TRUST, Fitted, find_fitted, find_signals
from curation.config.run import RunConfig
from curation.config.trust import TrustConfig, find_read_keys
from curation.config.tune import TuneConfig
from curation.errors import ConfigError
from curation.registry import BUDGETS

Key = tuple[str, ...]
"""A key with those of its sections; the name of a function or signal may have dots (``my.module:function``)."""
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
    named: dict[str, list[str]] = {}
    for key, readers in found[0].items():
        if _is_set(given, key) and all(key in of_run for of_run in found):
            named.setdefault(readers, []).append(".".join(key))
    if named:
        listed = "; ".join(f"{', '.join(keys)}: not read in this run, but by {who}" for who, keys in named.items())
        raise ConfigError(f"{where}: {listed}; leave the key out, or add what reads it")


def _iter_unread(run: RunConfig) -> Iterator[tuple[Key, str]]:
    """Yield each key that nothing in a run reads, with what reads it."""
    teacher, selection = run.teacher, run.selection
    backends = {teacher.backend, *([] if teacher.reader is None else [teacher.reader.backend])}
    is_known = backends <= OURS
    signals = find_signals(selection.used)
    asked = {signal.asks for signal in signals.values()} | {signal.section for signal in signals.values()}
    fitted = {*find_fitted(selection.used), run.trust.kind}
    budgets = [(key, name, rule) for name, rule in BUDGETS.items() for key in rule.keys or ()]
    read: dict[Key, tuple[bool, str]] = {
        ("teacher", "vllm"): (bool(backends & {"vllm", "auto"}) or not is_known, "backend vllm"),
        ("teacher", "scripted"): ("scripted" in backends or not is_known, "backend scripted"),
        ("teacher", "options"): (not is_known, "backends of your own"),
        ("signals", "second_teacher"): ("second_teacher" in asked, "the arm ensemble"),
        ("signals", "reward"): ("reward" in asked, "the arm reward"),
        ("signals", "self_consistency"): ("self_consistency" in asked, "the arm self_consistency"),
        **{("signals", "models", name): (name in asked, "an arm that asks it") for name in run.signals.models},
        **{("signals", "options", name): (name in signals, "an arm with that signal") for name in run.signals.options},
        **{("trust", "options", name): (name in fitted, "a function of that name") for name in run.trust.options},
        ("selection", "difficulty_bins"): (
            any(STRATUM in ARMS[arm].rule.reads for arm in selection.arms),
            "stratified arms",
        ),
        ("selection", "gold_rollouts"): (
            any(ARMS[arm].gold for arm in selection.arms),
            "arms that train on gold labels",
        ),
        **{
            ("selection", "budget", key): (rule == selection.budget.declared, f"budget {name}")
            for key, name, rule in budgets
        },
    }
    if not run.trust.search and run.tune == TuneConfig():  # a search may try kinds that read others
        kinds = find_fitted(fitted - {PAPER_TRUST} | {run.trust.kind})
        known = {*TrustConfig.RESOURCES, "kind", "search", "options"}.union(*map(find_read_keys, kinds.values()))
        by_kind = {name: find_read_keys(trust) for name, trust in TRUST.items() if isinstance(trust, Fitted)}
        for key in TrustConfig.model_fields:
            readers = ", ".join(name for name, keys in by_kind.items() if key in keys)
            read[("trust", key)] = key in known, f"trust.kind {readers}"
    yield from ((key, readers) for key, (is_read, readers) in read.items() if not is_read)


def _is_set(given: Mapping[str, object], key: Key) -> bool:
    """Return whether a file sets a key; outside ``trust`` a null or empty section counts as left out."""
    node: object = given
    for part in key:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return node not in (None, {}) or key[0] == "trust"

"""Fits the default trust function, a cross-fitted stack that falls back to a free signal (``trust.stacked``).

A seeded hash assigns the labelled rows to folds. Members read the states: a linear probe of each state and one of all
together, a probe of the class if labels are a closed set (``train.probes``), and with ``network_rows`` rows or more one
network per fold. A row's logits come from weights that were fitted without it. The whole stack is chosen unless
cross-validation finds a simpler function better: one free signal, or the numbers of the answers together.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from curation.arms import TRUST, Column, free_of, is_free
from curation.arrays import Float64s
from curation.config import TrustConfig
from curation.errors import DegenerateSourceError, SourceError
from curation.hashing import derive, hash_unit
from curation.json_types import Json, JsonView
from curation.metrics import compute_auc_value
from curation.trust.class_probe import CLASS_PROBE, LABEL
from curation.trust.combining import NUM_LEADS, Candidate, Folded, assign_folds, choose_candidate, has_spread
from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.folded import PrincipalComponents
from curation.trust.parts import FIT, UNUSED, VALIDATION
from curation.trust.stacked import NETWORKS, Probes, StackedTrust, Trees
from train.probes import fit_class_probe, fit_ridge
from train.trust import compute_components, compute_logits_at, fit_neural, project_rows
from train.trust_loop import LabelledRows, Note, drop_note, note_part

STACKED, CONFIDENCE = "stacked", "fitted_confidence"
FOLDS = 5
PROBE_ROWS = 80
"""Minimum number of labelled rows for members that read the states; with fewer, only the numbers are used."""
TREE_ROWS = 2_000
"""Minimum number of labelled rows for combining by boosted trees, if better, in place of a logistic regression."""
PROOF = 2.0
"""The lead in cross-validated AUC, in standard errors of the difference, at which a simpler function replaces the whole
stack."""
NETWORK: JsonView = {"depth": 2, "width": 128, "learning_rate": 1e-3, "max_steps": 1_000, "patience": 200}
"""Settings of the networks; classes weigh the same, so that their logits are those of probabilities."""
STOPPING = 0.125  # share of the other folds' rows by which a fold's network is stopped early


def fit_stacked(
    rows: LabelledRows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, object],
    note: Note = drop_note,
    network_rows: int = 500,
) -> StackedTrust:
    """Return a stack of these rows; ``network_rows`` is the minimum number of labelled rows for networks."""
    stack = _Stack(rows, config, seed)
    free = stack.free
    if stack.rarer < 2 * FOLDS:
        name = free[0].name
        reason = (
            f"trust is {name} alone: of {stack.num_rows:,} labelled rows {stack.rarer} have the rarer outcome, and "
            f"{2 * FOLDS} are needed to compare it with more; label more source rows"
        )
        return stack.make(free[0], origin, {"taken": name, "candidates": [], "reason": reason})
    numbers = stacked = stack.fit_logistic(CONFIDENCE, [])
    if stack.num_rows >= PROBE_ROWS and config.inputs:
        stack.fit_probes()
        stack.fit_class_probe()
        if stack.num_rows >= network_rows:
            stack.fit_networks(note)
        stacked = stack.fit_logistic(STACKED, stack.members)
        if stack.num_rows >= TREE_ROWS:  # boosted trees, if better
            trees = stack.folded.fit_trees(STACKED, *stack.join_columns(stack.members), config)
            stacked = max(stacked, trees, key=lambda candidate: compute_auc_value(candidate.raw_M, stack.correct_M))
    simpler = [*free, *([] if stacked is numbers else [numbers])]
    taken, choice = choose_candidate(simpler, stacked, stack.correct_M, PROOF)
    return stack.make(taken, origin, choice)


def fit_confidence(
    rows: LabelledRows, config: TrustConfig, *, seed: int, origin: Mapping[str, object], note: Note = drop_note
) -> StackedTrust:
    """Fit one logistic regression on the numbers of the rows' answers, without the states."""
    stack = _Stack(rows, config, seed)
    few = stack.rarer < 2 * FOLDS
    return stack.make(stack.free[0] if few else stack.fit_logistic(CONFIDENCE, []), origin, None)


class _Stack:
    """The labelled rows that are in a part, and the members fitted on them."""

    def __init__(self, rows: LabelledRows, config: TrustConfig, seed: int) -> None:
        self._rows, self._config, self._seed = rows, config, seed
        self._used_M = np.flatnonzero(rows.part_N >= 0)
        self.correct_M = rows.correct_N[self._used_M]
        self.num_rows = len(self.correct_M)
        num_right = int(self.correct_M.sum())
        self.rarer = min(num_right, self.num_rows - num_right)  # number of rows with the rarer outcome
        if not self.rarer:
            raise DegenerateSourceError(
                f"trust: {num_right} of the {self.num_rows} weak labels of the source that can be used are right, but "
                "both right and wrong ones are needed; give more source rows or another teacher"
            )
        cluster_M = None if rows.cluster_N is None else rows.cluster_N[self._used_M]
        fold_M = assign_folds(rows.row_ids_N[self._used_M], self.correct_M, FOLDS, seed, cluster_M=cluster_M)
        self.folded = Folded(self.correct_M, fold_M)
        known = [name for name in rows.numbers if name != LABEL]  # LABEL is a class, not a number
        kept = [name in known and has_spread(rows.numbers_NK[self._used_M, n]) for n, name in enumerate(rows.numbers)]
        self._numbers = [name for name, keep in zip(rows.numbers, kept, strict=True) if keep]
        self._numbers_MK = rows.numbers_NK[self._used_M][:, np.array(kept, dtype=np.bool_)]
        if not self._numbers:
            raise SourceError(
                "trust: the source's labels hold no number of the answers that differs between rows "
                f"({', '.join(known) or 'none is stored'}); label again, or set trust.kind: neural"
            )
        self.members: list[tuple[str, Float64s]] = []  # names and out-of-fold logits [M]
        self._fitted: dict[str, Any] = {}  # fitted members, as :class:`StackedTrust` takes them

    @cached_property
    def free(self) -> Sequence[Candidate]:
        """A candidate for each free signal that differs between rows, best AUC first, or for the first number."""
        names = free_of(self._numbers)
        columns = {name: trust.column for name in names if isinstance(trust := TRUST[name], Column)}
        stored = {name: column for name, column in columns.items() if column in self._numbers}
        found = [
            self.folded.fit_column(name, column, self._numbers_MK[:, self._numbers.index(column)])
            for name, column in (stored or {self._numbers[0]: self._numbers[0]}).items()
        ]
        return sorted(found, key=lambda candidate: -compute_auc_value(candidate.raw_M, self.correct_M))

    def fit_logistic(self, name: str, members: Sequence[tuple[str, Float64s]]) -> Candidate:
        """Return the logistic regression of the answers' numbers and these members."""
        leads = [candidate.combination.names[0] for candidate in self.free[:NUM_LEADS]]
        rising = [candidate.combination.names[0] for candidate in self.free if is_free(candidate.name)]
        names, columns_MK = self.join_columns(members)
        return self.folded.fit_logistic(name, names, columns_MK, leads=leads, rising=rising, num_members=len(members))

    @cached_property
    def _projected(self) -> tuple[LabelledRows, PrincipalComponents | None]:
        """The rows with their states projected on the principal components of the used rows, and these components."""
        used_N = np.where(self._rows.part_N >= 0, np.int8(FIT), np.int8(UNUSED))
        pca = compute_components(self._rows._replace(part_N=used_N), self._config)
        return self._rows if pca is None else project_rows(self._rows, pca), pca

    def fit_probes(self) -> None:
        """Fit a linear probe of all inputs together, and one of each state if there are several inputs.

        Their targets are +1 for right rows and -1 for wrong ones.
        """
        rows, pca = self._projected
        hidden_MD, sizes = rows.hidden_ND[self._used_M], rows.sizes
        ends = np.cumsum(sizes).tolist()
        parts = {"all": slice(0, ends[-1])}
        if len(sizes) > 1:
            places = zip(self._config.states, sizes, ends, strict=False)
            parts |= {name: slice(end - size, end) for name, size, end in places}
        weight_MD, bias_M = np.zeros((len(parts), ends[-1])), np.empty(len(parts))
        target_M1 = np.where(self.correct_M, 1.0, -1.0)[:, None]
        for place, (name, part) in enumerate(parts.items()):
            probe = fit_ridge(hidden_MD[:, part], target_M1, self.folded.fold_M)
            weight_MD[place, part], bias_M[place] = probe.weight_DC[:, 0], probe.bias_C[0]
            self.members.append((f"probe of {name}", probe.out_of_fold_NC[:, 0]))
        weights, centre_D = torch.from_numpy(weight_MD), torch.from_numpy(hidden_MD.mean(axis=0, dtype=np.float64))
        biases = torch.from_numpy(bias_M) + weights @ centre_D  # of rows less their centre
        if pca is not None:
            weights, biases, centre_D = pca.fold(weights, biases, centre_D)
        self._fitted["probes"] = Probes([name for name, _ in self.members], weights, biases, centre_D)

    def fit_networks(self, note: Note) -> None:
        """Fit one network per fold on the other folds; a new row's logit is that of their mean probability.

        Some rows of the other folds are for early stopping.
        """
        rows, pca = self._projected
        settings = self._config.model_copy(update={**NETWORK, "class_weight": 0.0, "pca": None})
        fold_N = np.full(len(rows.part_N), UNUSED)
        fold_N[self._used_M] = self.folded.fold_M
        out_M, nets = np.empty(self.num_rows), []
        for fold in range(FOLDS):
            own = derive(self._seed, f"fold {fold}")
            stops_N = hash_unit(rows.row_ids_N if rows.cluster_N is None else rows.cluster_N, derive(own, "stopping"))
            part_N = np.where(stops_N < STOPPING, np.int8(VALIDATION), np.int8(FIT))
            part_N[(fold_N == fold) | (fold_N < 0)] = UNUSED
            of_others = rows._replace(part_N=part_N)
            network = fit_neural(of_others, settings, seed=own, origin={}, note=note_part(note, fold, FOLDS))
            held_M = self.folded.fold_M == fold
            out_M[held_M] = compute_logits_at(network, rows, self._used_M[held_M])
            nets.append(network.net)
        self._fitted["networks"] = DeepEnsemble(nets, self._config.inputs, {}).with_pca(pca)
        self.members.append((NETWORKS, out_M))

    def fit_class_probe(self) -> None:
        """Fit a probe of the prompt's states for the log-odds of each row's label, if labels are a closed set."""
        found = fit_class_probe(self._rows, self._used_M, self.folded.fold_M, self._config.states)
        if found is not None and has_spread(odds_M := found[1]):
            self._fitted["class_probe"] = found[0]
            self.members.append((CLASS_PROBE, np.where(np.isnan(odds_M), np.nanmean(odds_M), odds_M)))

    def join_columns(self, members: Sequence[tuple[str, Float64s]]) -> tuple[tuple[str, ...], Float64s]:
        """Return the names and the values [M, K] of a combination's columns: the numbers and the members' logits."""
        columns_MK = np.concatenate([self._numbers_MK, *(out_M[:, None] for _, out_M in members)], axis=1)
        return (*self._numbers, *(member for member, _ in members)), columns_MK

    def make(self, taken: Candidate, origin: Mapping[str, object], choice: Mapping[str, object] | None) -> StackedTrust:
        """Return the trust function, with its held-out scores and the record of its fit."""
        record: Json = {
            "num_fit": self.num_rows,
            "num_repeats": self._rows.num_repeats,
            "share_right_fit": float(self.correct_M.mean()),
            "folds": FOLDS,
            "combined_by": "trees" if isinstance(taken.combination.model, Trees) else "logistic regression",
            "choice": choice,
        }
        members = self._fitted if taken.name == STACKED else {}
        fit = {**origin, "seed": self._seed, **record}
        trust = StackedTrust(taken.combination, fit, states=self._config.inputs, **members)
        trust.held_out = self._rows.held_out(self._used_M, taken.raw_M.astype(np.float32))
        return trust

"""Fits the default trust function, a cross-fitted stack that is never below the free signals (``trust.stacked``).

The labelled rows fall into folds by a seeded hash. Members read the states: a linear probe of each state and one of all
side by side (``train.ridge``), and from ``network_rows`` rows on a network a fold, fitted by Ray Train on the other
folds. A row's logits come from weights that have not seen it. Then the whole stack is taken, unless cross-validation
finds a simpler function ahead of it: one free signal, or the numbers of the answers together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from curation.arms import FREE, TRUST, Column
from curation.config import TrustConfig
from curation.errors import ConfigError, DegenerateSourceError, SourceError
from curation.hashing import derive, hash_unit
from curation.metrics import auc_difference, auc_value
from curation.metrics.estimates import NORMAL_QUANTILE
from curation.refs import TableRef, TrustRef, fingerprint
from curation.storage.paths import Place
from curation.tables import io
from curation.trust.boosted_trees import BoostedTrees
from curation.trust.components import PrincipalComponents
from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.neural import NeuralTrust
from curation.trust.parts import FIT, UNUSED, VALIDATION
from curation.trust.stacked import (
    NETWORKS,
    Bent,
    Combination,
    Logistic,
    Probes,
    StackedTrust,
    Trees,
    stored_numbers,
)
from train.ridge import fit_probe
from train.trust import components_of, fit_member, labelled_rows, logits_at, neural_of, origin_of, projected
from train.trust_loop import Flags, Ints, Rows, Shard

Floats = npt.NDArray[np.float64]
STACKED, CONFIDENCE = "stacked", "fitted_confidence"
STRENGTHS = (0.01, 0.03, 0.1, 0.3)
"""Inverse penalties of the logistic regression (scikit-learn's C), for columns of deviation 1, the strongest first. The
first whose out-of-fold loss is within one standard error of the least is taken (Breiman et al. 1984, section 3.4.3); of
fewer rows than ``LINE_ROWS``, whose loss does not tell, the first."""
ALONE = (0.0003, 0.003, 0.03, 0.3)
"""The same of one column alone, which ranks rows alike under any; the one with the least loss is taken."""
LEAD, LEAD_OF_FEW = 2.0, 5.0
"""The deviation of the best free signal's column, and that with fewer rows than ``LINE_ROWS``: it is hardly penalised,
so that with few rows the stack is near that signal, and with more it departs from it."""
LINE_ROWS, BEND_ROWS = 300, 1_000
"""From so many labelled rows on a line makes logits those of a probability, and from so many one with a bend."""
STOPPING = 0.125
"""The share of the rows of the other folds that say when a fold's network stops."""
TREES: Mapping[str, Any] = {"num_trees": 100, "learning_rate": 0.05, "max_leaves": 8, "min_rows": 40}
"""Settings of the combination's trees: small ones, as the members have read the states."""


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Recipe:
    """Settings of a stack (``trust.options.stacked``)."""

    folds: Annotated[int, Field(ge=2)] = 5
    probe_rows: NonNegativeInt = 80
    """With fewer labelled rows no member reads the states: the numbers stand alone."""
    network_rows: NonNegativeInt = 2_000
    """With fewer labelled rows there are no networks."""
    tree_rows: NonNegativeInt = 2_000
    """With fewer labelled rows a logistic regression combines; with as many, boosted trees do where they are better."""
    proof: NonNegativeFloat = 2.0
    """How many standard errors of the difference in cross-validated AUC a simpler function has to be ahead, to be taken
    in place of the whole stack."""
    depth: PositiveInt = 2
    """Blocks of a network, which is one of ``neural``."""
    width: PositiveInt = 128
    learning_rate: PositiveFloat = 1e-3
    max_steps: PositiveInt = 1_000
    patience: PositiveInt = 200

    def network(self, config: TrustConfig) -> TrustConfig:
        """How a network is fitted: its logits are to be probabilities, so no class weighs more."""
        own = ("depth", "width", "learning_rate", "max_steps", "patience")
        return config.model_copy(update={"class_weight": 0.0, **{name: getattr(self, name) for name in own}})


def recipe_of(options: Mapping[str, Any]) -> Recipe:
    """The recipe of ``trust.options.stacked``.

    Raises:
        ConfigError: a setting that there is none of, or a value that it cannot have.
    """
    try:
        return Recipe(**options)
    except ValidationError as error:
        problem = error.errors()[0]
        name, known = problem["loc"][-1], ", ".join(field.name for field in fields(Recipe))
        why = (
            f"there is no such setting; known are {known}"
            if problem["type"].startswith("unexpected")
            else f"{problem['input']!r}: {problem['msg']}"
        )
        raise ConfigError(f"trust.options.stacked.{name}: {why}") from error


class Candidate(NamedTuple):
    """A function that may be taken, with its out-of-fold scores."""

    name: str
    """``stacked``, ``fitted_confidence``, or a free signal."""
    combination: Combination
    raw_M: Floats
    """The logits of the labelled rows that are used."""


FitNetwork = Callable[[Rows, TrustConfig, int, int], NeuralTrust]
"""From rows with their folds, settings, the fold that is left out and a seed to the network of the other folds."""


def fit_stacked(
    labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place, **options: Any
) -> TrustRef:
    """Fit a stack and save it to ``output``; its networks are fitted by Ray Train.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong.
        SourceError: the labels hold no number that differs between rows.
        ConfigError: options that it does not take.
        RunFailedError: a network failed more than ``config.max_failures`` times; the same call resumes it.
    """
    rows, origin = _read(labels, grades, config, seed)
    output = output.resolve()
    kept = output.with_name(f"{output.name}.folds")
    shared: list[Any] = []

    def by_ray(folded: Rows, settings: TrustConfig, fold: int, own: int) -> NeuralTrust:
        import ray

        if not shared:
            shared.append(ray.put(tuple(folded)))
        place = kept / fingerprint([origin, options]) / str(fold)
        of_network = {**origin, "config": settings.model_dump(mode="json")}
        return fit_member(partial(network_of, fold=fold), shared[0], settings, of_network, own, place)

    found = stacked_of(rows, config, seed=seed, origin=origin, fit_network=by_ray, **options).save(output)
    if shared:
        from train.launch import remove

        remove(kept)
    return found


def fit_confidence(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place) -> TrustRef:
    """Fit the numbers of the answers alone, without the states, and save the function to ``output``.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong.
        SourceError: the labels hold no number that differs between rows.
    """
    rows, origin = _read(labels, grades, config, seed)
    return confidence_of(rows, config, seed=seed, origin=origin).save(output.resolve())


def _read(labels: TableRef, grades: TableRef, config: TrustConfig, seed: int) -> tuple[Rows, dict[str, Any]]:
    numbers = stored_numbers(io.open_table(labels).schema)
    return labelled_rows(labels, grades, config, seed=seed, numbers=numbers), origin_of(labels, grades, config, seed)


def stacked_of(
    rows: Rows,
    config: TrustConfig,
    *,
    seed: int,
    origin: Mapping[str, Any],
    fit_network: FitNetwork | None = None,
    **options: Any,
) -> StackedTrust:
    """A stack of these rows; see :func:`fit_stacked`. Unless told, networks are fitted in this process."""
    recipe = recipe_of(options)
    stack = _Stack(rows, config, recipe, seed)
    free = stack.free()
    if stack.rarer < 2 * recipe.folds:
        return stack.made(free[0], origin, stack.too_few(free[0].name))
    numbers = whole = stack.logistic(CONFIDENCE)
    if stack.num_rows >= recipe.probe_rows:
        stack.fit_probes()
        if stack.num_rows >= recipe.network_rows:
            stack.fit_networks(fit_network)
        whole = stack.logistic(STACKED)
        if stack.num_rows >= recipe.tree_rows:
            whole = max(whole, stack.trees(), key=lambda found: auc_value(found.raw_M, stack.correct_M))
    simpler = [*free, *([] if whole is numbers else [numbers])]
    taken, choice = chosen(simpler, whole, stack.correct_M, recipe.proof)
    return stack.made(taken, origin, choice)


def confidence_of(rows: Rows, config: TrustConfig, *, seed: int, origin: Mapping[str, Any]) -> StackedTrust:
    """The numbers of the answers of these rows in one logistic regression; see :func:`fit_confidence`."""
    stack = _Stack(rows, config, Recipe(), seed)
    few = stack.rarer < 2 * stack.recipe.folds
    return stack.made(stack.free()[0] if few else stack.logistic(CONFIDENCE), origin, None)


def network_of(
    rows: Rows,
    config: TrustConfig,
    *,
    fold: int,
    seed: int,
    origin: Mapping[str, Any],
    shard: Shard | None = None,
) -> NeuralTrust:
    """A network of all folds (``rows.part_N``) but one; some of their rows say when it stops."""
    stops_N = hash_unit(rows.row_ids_N, derive(seed, "stopping")) < STOPPING
    part_N = np.where(stops_N, np.int8(VALIDATION), np.int8(FIT))
    part_N[(rows.part_N == fold) | (rows.part_N < 0)] = UNUSED
    return neural_of(rows._replace(part_N=part_N), config, seed=seed, origin=origin, shard=shard)


def chosen(
    simpler: Sequence[Candidate], whole: Candidate, correct_M: Flags, proof: float
) -> tuple[Candidate, dict[str, Any]]:
    """The function that is taken, and why, as JSON.

    The whole stack, unless a simpler function is ahead of it in cross-validated AUC by more than ``proof`` standard
    errors of the paired difference (DeLong); then the one that is furthest ahead.
    """
    taken, most = whole, 0.0
    found: list[dict[str, Any]] = []
    for candidate in simpler:
        ahead = auc_difference(candidate.raw_M, whole.raw_M, correct_M)
        error = (ahead.high - ahead.low) / (2 * NORMAL_QUANTILE)
        auc = auc_value(candidate.raw_M, correct_M)
        found.append({"name": candidate.name, "auc": auc, "loses_by": -ahead.value, "standard_error": error})
        if ahead.value > proof * error and ahead.value > most:
            taken, most = candidate, ahead.value
    auc = auc_value(whole.raw_M, correct_M)
    best = max((item for item in found if item["name"] in FREE), key=lambda item: item["auc"], default=None)
    rows = f"{len(correct_M):,} labelled rows"
    if taken is not whole:
        reason = (
            f"trust is {taken.name} alone: in cross-validation on {rows} its AUC is {most:.3f} above that of "
            f"{whole.name}, more than {proof:g} standard errors"
        )
    else:
        against = "" if best is None else f"; the best free signal, {best['name']}, has {best['auc']:.3f}"
        reason = f"trust is {whole.name}: its AUC in cross-validation on {rows} is {auc:.3f}{against}"
    own = {"name": whole.name, "auc": auc, "loses_by": 0.0, "standard_error": 0.0}
    return taken, {"taken": taken.name, "candidates": [*found, own], "reason": reason}


class _Stack:
    """The labelled rows that are used, and what has been fitted on them."""

    def __init__(self, rows: Rows, config: TrustConfig, recipe: Recipe, seed: int) -> None:
        """``rows`` with their numbers; all that are in a part are used."""
        self._rows, self._config, self.recipe, self._seed = rows, config, recipe, seed
        self._used_M = np.flatnonzero(rows.part_N >= 0)
        self.correct_M = rows.correct_N[self._used_M]
        self.num_rows = len(self.correct_M)
        num_right = int(self.correct_M.sum())
        self.rarer = min(num_right, self.num_rows - num_right)
        """Rows of the rarer class."""
        if not self.rarer:
            raise DegenerateSourceError(
                f"trust: {num_right} of the {self.num_rows} weak labels of the source that can be used are right, both "
                "right and wrong ones are needed; give more source rows or another teacher"
            )
        self._fold_M = folds_of(rows.row_ids_N[self._used_M], self.correct_M, recipe.folds, seed)
        varies = [_varies(column_M) for column_M in rows.numbers_NK[self._used_M].T]
        self._numbers = [name for name, kept in zip(rows.numbers, varies, strict=True) if kept]
        self._numbers_MK = rows.numbers_NK[self._used_M][:, np.array(varies, dtype=np.bool_)]
        if not self._numbers:
            raise SourceError(
                "trust: the source's labels hold no number of the answers that differs between rows "
                f"({', '.join(rows.numbers) or 'none is stored'}); label again, or set trust.kind: neural"
            )
        self._probes: Probes | None = None
        self._networks: DeepEnsemble | None = None
        self._members: list[tuple[str, Floats]] = []
        """Names and out-of-fold logits [M]."""

    def free(self) -> list[Candidate]:
        """The free signals that differ between rows, each alone, the best by AUC first; else the first number."""
        columns = {name: trust.column for name in FREE if isinstance(trust := TRUST[name], Column)}
        found = [self._alone(name, column) for name, column in columns.items() if column in self._numbers]
        found = found or [self._alone(self._numbers[0], self._numbers[0])]
        return sorted(found, key=lambda candidate: -auc_value(candidate.raw_M, self.correct_M))

    def _alone(self, name: str, column: str) -> Candidate:
        """One number, by whose order rows rank."""
        column_M1 = self._numbers_MK[:, [self._numbers.index(column)]]
        strength, _ = self._out_of_fold(column_M1, np.ones(1), ALONE, errors=0)
        filled_M1 = _filled(column_M1)
        model = _logistic(filled_M1, self.correct_M, np.ones(1), strength, rising=True)
        # One slope and one intercept: where they are fitted hardly matters, but folds of their own would mix the ranks.
        return Candidate(name, Combination((column,), filled_M1.mean(axis=0), model), model.logits(filled_M1))

    def too_few(self, name: str) -> dict[str, Any]:
        """Why nothing is compared."""
        reason = (
            f"trust is {name} alone: of {self.num_rows:,} labelled rows {self.rarer} have the rarer outcome, and "
            f"{2 * self.recipe.folds} are needed to compare it with more; label more source rows"
        )
        return {"taken": name, "candidates": [], "reason": reason}

    def fit_probes(self) -> None:
        """A linear probe of each state, and of all inputs side by side where there are several."""
        pca = self._components()
        rows = self._rows if pca is None else projected(self._rows, pca)
        hidden_MD, sizes = rows.hidden_ND[self._used_M], rows.sizes
        ends = np.cumsum(sizes).tolist()
        parts = {"all": slice(0, ends[-1])}
        if len(sizes) > 1:
            places = zip(self._config.states, sizes, ends, strict=False)
            parts |= {name: slice(end - size, end) for name, size, end in places}
        weight_MD = np.zeros((len(parts), ends[-1]))
        bias_M = np.empty(len(parts))
        for place, (name, part) in enumerate(parts.items()):
            probe = fit_probe(hidden_MD[:, part], self.correct_M, self._fold_M)
            weight_MD[place, part], bias_M[place] = probe.weight_D, probe.bias
            self._members.append((f"probe of {name}", probe.out_of_fold_N))
        weights, centre_D = torch.from_numpy(weight_MD), torch.from_numpy(hidden_MD.mean(axis=0, dtype=np.float64))
        biases = torch.from_numpy(bias_M) + weights @ centre_D  # of rows less their centre
        if pca is not None:
            size = pca.shape[1]
            biases = biases - weights[:, :size] @ centre_D[:size]
            weights = torch.cat([weights[:, :size] @ pca.components_DK.double().T, weights[:, size:]], dim=1)
            centre_D = torch.cat([pca.mean_D.double(), centre_D[size:]])
        self._probes = Probes([name for name, _ in self._members], weights, biases, centre_D)

    def fit_networks(self, fit_network: FitNetwork | None) -> None:
        """A network a fold; a new row's logit is that of their mean probability."""
        fold_N = np.full(len(self._rows.part_N), UNUSED, dtype=np.int8)
        fold_N[self._used_M] = self._fold_M
        rows, settings, pca = self._rows._replace(part_N=fold_N), self.recipe.network(self._config), self._components()
        if pca is not None:
            rows, settings = projected(rows, pca), settings.model_copy(update={"pca": None})
        out_M, nets = np.empty(self.num_rows), []
        for fold in range(self.recipe.folds):
            own = derive(self._seed, f"fold {fold}")
            network = (
                network_of(rows, settings, fold=fold, seed=own, origin={})
                if fit_network is None
                else fit_network(rows, settings, fold, own)
            )
            held_M = self._fold_M == fold
            out_M[held_M] = logits_at(network, rows, self._used_M[held_M])
            nets.append(network.net)
        self._networks = DeepEnsemble(nets, self._config.inputs, {}).behind(pca)
        self._members.append((NETWORKS, out_M))

    def _components(self) -> PrincipalComponents | None:
        used_N = np.where(self._rows.part_N >= 0, np.int8(FIT), np.int8(UNUSED))
        return components_of(self._rows._replace(part_N=used_N), self._config)

    def _columns(self, members: Sequence[tuple[str, Floats]]) -> tuple[tuple[str, ...], Floats]:
        """Names and values [M, K] of what a combination reads: the numbers and the logits of members."""
        columns_MK = np.concatenate([self._numbers_MK, *(out_M[:, None] for _, out_M in members)], axis=1)
        return (*self._numbers, *(member for member, _ in members)), columns_MK

    def logistic(self, name: str) -> Candidate:
        """The numbers and, in a stack, the members in a logistic regression; out-of-fold loss chooses its penalty."""
        names, columns_MK = self._columns(self._members if name == STACKED else [])
        lead = self.free()[0].combination.names[0]
        few = self.num_rows < LINE_ROWS
        scale_K = np.array([(LEAD_OF_FEW if few else LEAD) if column == lead else 1.0 for column in names])
        strength, raw_M = self._out_of_fold(columns_MK, scale_K, STRENGTHS[:1] if few else STRENGTHS)
        filled_MK = _filled(columns_MK)
        model = _logistic(filled_MK, self.correct_M, scale_K, strength)
        bent = calibrated(raw_M, self.correct_M)
        return Candidate(name, Combination(names, filled_MK.mean(axis=0), model, bent), bent(raw_M))

    def _out_of_fold(
        self, columns_MK: Floats, scale_K: Floats, strengths: Sequence[float], *, errors: float = 1.0
    ) -> tuple[float, Floats]:
        """The first inverse penalty whose out-of-fold loss is near the least, and the logits [M] under it.

        ``errors``: how many standard errors of the paired difference from the least loss are near.
        """
        out_SM = np.empty((len(strengths), self.num_rows))
        for fold in range(self.recipe.folds):
            held_M = self._fold_M == fold
            filled_MK = _filled(columns_MK, ~held_M)
            for place, strength in enumerate(strengths):
                if 0 < self.correct_M[~held_M].sum() < (~held_M).sum():
                    model = _logistic(filled_MK[~held_M], self.correct_M[~held_M], scale_K, strength)
                    out_SM[place, held_M] = model.logits(filled_MK[held_M])
                else:  # a handful of rows
                    out_SM[place, held_M] = 0.0
        loss_SM = np.logaddexp(0, np.where(self.correct_M, -out_SM, out_SM))
        more_SM = loss_SM - loss_SM[loss_SM.mean(axis=1).argmin()]
        near_S = more_SM.mean(axis=1) <= errors * more_SM.std(axis=1) / self.num_rows**0.5
        taken = int(near_S.argmax())
        return strengths[taken], out_SM[taken]

    def trees(self) -> Candidate:
        """Numbers and members in boosted trees, with the slope and intercept that their out-of-fold logits need."""
        names, columns_MK = self._columns(self._members)
        filled_MK, out_M = _filled(columns_MK), np.empty(self.num_rows)
        settings = self._config.model_copy(update={"class_weight": 0.0})

        def fitted(taken_M: Flags) -> BoostedTrees:
            return BoostedTrees.fitted(filled_MK[taken_M], self.correct_M[taken_M], settings, {}, **TREES)

        for fold in range(self.recipe.folds):
            held_M = self._fold_M == fold
            out_M[held_M] = fitted(~held_M).logits(torch.from_numpy(filled_MK[held_M]))
        bent, model = calibrated(out_M, self.correct_M), Trees(fitted(np.ones(self.num_rows, dtype=np.bool_)))
        return Candidate(STACKED, Combination(names, filled_MK.mean(axis=0), model, bent), bent(out_M))

    def made(self, taken: Candidate, origin: Mapping[str, Any], choice: Mapping[str, Any] | None) -> StackedTrust:
        """The trust function, with its held-out scores and the record of its fit."""
        record = {
            "num_fit": self.num_rows,
            "num_repeats": self._rows.num_repeats,
            "share_right_fit": float(self.correct_M.mean()),
            "folds": self.recipe.folds,
            "combined_by": "trees" if isinstance(taken.combination.model, Trees) else "logistic regression",
            "choice": choice,
        }
        trust = StackedTrust(
            taken.combination,
            {**origin, "seed": self._seed, **record},
            states=self._config.inputs,
            probes=self._probes if taken.name == STACKED else None,
            networks=self._networks if taken.name == STACKED else None,
        )
        trust.held_out = self._rows.held_out(self._used_M, taken.raw_M.astype(np.float32))
        return trust


def folds_of(row_ids_M: Ints, correct_M: Flags, folds: int, seed: int) -> Ints:
    """The fold of each row, int64 [M]: rows of a class in the order of a seeded hash of their ids, dealt in turn."""
    fold_M = np.empty(len(correct_M), dtype=np.int64)
    unit_M = hash_unit(row_ids_M, derive(seed, "stack folds"))
    for start, of_class_M in enumerate((correct_M, ~correct_M)):
        (places,) = np.nonzero(of_class_M)
        fold_M[places[np.argsort(unit_M[places], kind="stable")]] = (np.arange(len(places)) + start) % folds
    return fold_M


def calibrated(raw_M: Floats, correct_M: Flags) -> Bent:
    """The rising line, of many rows with a bend at the median, that makes out-of-fold logits those of a probability.

    A penalty makes logits too small, and the most trusted rows can be surer than a straight line says.
    """
    from sklearn.linear_model import LogisticRegression

    if len(raw_M) < LINE_ROWS:
        return Bent()
    knee = float(np.median(raw_M))
    both_M2 = np.stack([raw_M, np.maximum(raw_M - knee, 0)], axis=1)
    for columns in ((0, 1), (0,)) if len(raw_M) >= BEND_ROWS else ((0,),):
        model = LogisticRegression(max_iter=1000).fit(both_M2[:, columns], correct_M.astype(int))
        slope, bend = (*model.coef_[0].tolist(), 0.0)[:2]
        if slope > 0 and slope + bend > 0:
            return Bent(float(model.intercept_[0]), slope, bend, knee)
    return Bent()


def _varies(column_M: Floats) -> bool:
    known = column_M[~np.isnan(column_M)]
    return bool(len(known) and known.std() > 1e-9 * max(1.0, float(np.abs(known).max())))


def _filled(columns_MK: Floats, taken_M: Flags | slice = slice(None)) -> Floats:
    """The columns with the mean of the rows ``taken_M`` in place of missing values; 0 where those have none."""
    known_MK = ~np.isnan(columns_MK[taken_M])
    mean_K = np.nansum(columns_MK[taken_M], axis=0) / np.maximum(known_MK.sum(axis=0), 1)
    return np.where(np.isnan(columns_MK), mean_K, columns_MK)


def _logistic(
    columns_MK: Floats, correct_M: Flags, scale_K: Floats, strength: float, *, rising: bool = False
) -> Logistic:
    """A logistic regression of columns that are brought to deviations ``scale_K``, told of the columns as they are.

    ``rising``: no weight is below 0, nor is 0, so that rows rank by a single column.
    """
    from sklearn.linear_model import LogisticRegression

    mean_K, deviation_K = columns_MK.mean(axis=0), columns_MK.std(axis=0)
    factor_K = np.where(deviation_K > 0, scale_K / np.where(deviation_K > 0, deviation_K, 1.0), 0.0)
    model = LogisticRegression(C=strength, max_iter=1000).fit((columns_MK - mean_K) * factor_K, correct_M.astype(int))
    weight_K = model.coef_[0] * factor_K
    if rising:
        weight_K = np.maximum(weight_K, 1e-6 * factor_K)
    return Logistic(weight_K, float(model.intercept_[0] - weight_K @ mean_K))

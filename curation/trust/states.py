"""Trust functions of hidden states: what all of them share, and their inputs as views of a batch's memory."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from curation.arrays import Bools, Float64s, Int64s
from curation.errors import DegenerateSourceError, SourceError
from curation.json_types import Json, JsonView
from curation.refs import TrustRef
from curation.storage.paths import Place
from curation.tables.schemas import describe_mend, get_input_column, is_number
from curation.trust import Scores, saved
from curation.trust.calibration import Calibration
from curation.trust.components import PrincipalComponents

ScoreDtype = Literal["float32", "bfloat16"]

SCORE_ROWS = 512
"""Rows of one forward pass when scoring: their states, and what a layer makes of them, stay in a core's cache."""


class HeldOutScores(NamedTuple):
    """The labelled rows of a fit, ascending by row id, and their raw scores by weights that have not seen them."""

    row_ids_N: Int64s
    raw_N: Scores
    """NaN where every weight has seen the row, or an earlier row that asks the same question."""


class StateTrust(ABC):
    """A trust function that gives a logit from hidden states, and maybe numbers beside them.

    Trust is the calibrated sigmoid of the logit.
    """

    kind: ClassVar[str]
    """The name under which the kind is saved."""
    _folded: Any = None
    """The folded weights that :meth:`raw_of` makes when it is first called."""
    default_pca: ClassVar[int | None] = None
    """How many principal components of the states it reads where ``trust.pca`` is unset, or as many as there are;
    ``None``: the states themselves."""

    def __init__(self, inputs: Sequence[str], fit: JsonView) -> None:
        self.inputs = tuple(inputs)
        """The names of the states and scalar columns that it reads (``TrustConfig.inputs``)."""
        self.fit = fit
        """What it was fitted on and how that went, as JSON."""
        self.calibration = Calibration()
        self.pca: PrincipalComponents | None = None
        """What projects the states before they are read (``TrustConfig.pca``)."""
        self.held_out: HeldOutScores | None = None
        """The rows that it was fitted on, with honest scores."""
        self.score_dtype: ScoreDtype = "float32"
        """The type in which :meth:`raw_of` takes products (``TrustConfig.score_dtype``)."""

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the inputs, in their order."""
        return tuple(get_input_column(name) for name in self.inputs)

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers a row that it was fitted on, over all inputs, after their projection."""

    @abstractmethod
    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row of inputs side by side, float32 [N]: in their stored type, or projected."""

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """The fitted weights, by name."""

    @classmethod
    @abstractmethod
    def made(cls, weights: Mapping[str, Tensor], description: Mapping[str, object]) -> Self:
        """Make the trust function of these weights and description, neither calibrated nor behind a projection."""

    def raw(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row of inputs side by side as they are stored, float32 [N]."""
        return self.logits(hidden_ND if self.pca is None else self.pca.project(hidden_ND))

    def raw_with(self, hidden_ND: Tensor, numbers_NK: Float64s, names: Sequence[str]) -> Scores:
        """Return the score of :meth:`raw` for rows of a fit; their answers' numbers, NaN for null, stand apart."""
        return self.raw(hidden_ND)

    def raw_of(self, columns: Sequence[Tensor]) -> Scores:
        """Return the logit of each row, float32 [N], of the inputs column by column, as a scan gives them.

        Equal to :meth:`raw` to rounding; a function that has a faster way than to join the columns overrides it.
        """
        return self.raw(columns[0] if len(columns) == 1 else torch.cat(tuple(columns), dim=1))

    def scoring_in(self, dtype: ScoreDtype) -> Self:
        """Return a copy of this trust function that scores in a type."""
        other = copy.copy(self)
        other.score_dtype, other._folded = dtype, None
        return other

    def behind(self, pca: PrincipalComponents | None) -> Self:
        """Return this trust function, fitted on projected states, with the projection that gives them."""
        if pca is None:
            return self
        self.pca = pca
        return self.noted(variance_kept=pca.variance_kept)

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the logit of each row, float32 [N]; NaN where an input is null.

        Raises:
            SourceError: a column is missing, or the states have another size than those it was fitted on.
        """
        states = read_states(labels, self.features)
        width, size = (0, 0) if self.pca is None else self.pca.shape
        if states.size != (expected := self.size - size + width):
            raise SourceError(
                f"{', '.join(self.features)}: {states.size} numbers a row, the trust function was fitted on "
                f"{expected}; score the labels of the teacher that it was fitted for"
            )
        raw_N = np.empty(labels.num_rows, dtype=np.float32)
        for start in range(0, labels.num_rows, SCORE_ROWS):
            rows = slice(start, start + SCORE_ROWS)
            raw_N[rows] = self.raw_of([column[rows] for column in states.columns])
        raw_N[states.missing_N] = np.nan
        return raw_N

    def source_score(self, labels: pa.RecordBatch) -> Scores:
        """Return :meth:`raw_score` for the source split: rows of the fit have their held-out score, or NaN."""
        raw_N = self.raw_score(labels)
        if self.held_out is not None and len(self.held_out.row_ids_N):
            row_ids_N = labels.column("row_id").to_numpy()
            places_N = np.minimum(np.searchsorted(self.held_out.row_ids_N, row_ids_N), len(self.held_out.row_ids_N) - 1)
            of_fit_N = self.held_out.row_ids_N[places_N] == row_ids_N
            raw_N[of_fit_N] = self.held_out.raw_N[places_N[of_fit_N]]
        return raw_N

    def description(self) -> Json:
        """Return arguments of :meth:`made` beside the weights, as JSON."""
        return {
            "kind": self.kind,
            "made_by": f"{type(self).__module__}:{type(self).__qualname__}",
            "inputs": self.inputs,
            "calibration": asdict(self.calibration),
            "pca": self.pca and {"variance_kept": self.pca.variance_kept, "num_rows": self.pca.num_rows},
            "score_dtype": self.score_dtype,
            "fit": self.fit,
        }

    def to_trust(self, raw_N: Scores) -> Scores:
        """Return the calibrated sigmoid of logits, float32 [N]."""
        return self.calibration.to_trust(raw_N)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the trust score of each row, float32 [N]; NaN where an input is null."""
        return self.to_trust(self.raw_score(labels))

    @classmethod
    def loaded(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the trust function from the weights and description that :meth:`save` wrote."""
        apart = ("pca.", "held_out.")
        trust = cls.made({k: v for k, v in weights.items() if not k.startswith(apart)}, description)
        trust.calibration = Calibration(**description["calibration"])
        if "held_out.raw_N" in weights:
            trust.held_out = HeldOutScores(*(weights[f"held_out.{name}"].numpy() for name in HeldOutScores._fields))
        if (numbers := description["pca"]) is not None:
            trust.pca = PrincipalComponents(weights["pca.mean_D"], weights["pca.components_DK"], **numbers)
        trust.score_dtype = description["score_dtype"]
        return trust

    def noted(self, **notes: object) -> Self:
        """Return this trust function, with notes on record of how its fit went."""
        self.fit = {**self.fit, **notes}
        return self

    def save(self, directory: Place) -> TrustRef:
        """Write weights and description into ``directory``, made where missing."""
        return saved.save(directory, TrustRef, self.saved_weights(), self.description())

    def saved_weights(self) -> dict[str, Tensor]:
        """Return the weights, with those of a projection and the held-out scores."""
        weights = dict(self.weights)
        if self.pca is not None:
            weights |= {"pca.mean_D": self.pca.mean_D, "pca.components_DK": self.pca.components_DK}
        if self.held_out is not None:
            weights |= {f"held_out.{name}": torch.from_numpy(of) for name, of in self.held_out._asdict().items()}
        return weights


def compute_class_weights(correct_N: Bools, strength: float, name: str) -> dict[int, float]:
    """Return the weight of a row in a fit of scikit-learn's, by its class: (N / (2 N_c)) ** ``strength``.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong; ``name`` says what was to be fitted.
    """
    counts_2 = np.bincount(correct_N, minlength=2)
    if not counts_2.all():
        raise DegenerateSourceError(
            f"{name}: {counts_2[1]} of {len(correct_N)} weak labels are right, both right and wrong ones are "
            "needed; give more source rows or another teacher"
        )
    return dict(enumerate(((len(correct_N) / (2 * counts_2)) ** strength).tolist()))


@dataclass(frozen=True, kw_only=True)
class States:
    """Hidden states of N rows, as views of Arrow's memory, and scalar columns."""

    columns: tuple[Tensor, ...]
    """[N, D] a column, states in the stored type, a scalar column as float32 [N, 1]; the numbers of a missing row are
    undefined."""
    missing_N: Bools
    """Whether any of the row's inputs is null."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers a row of each column."""
        return tuple(column.shape[1] for column in self.columns)

    @property
    def size(self) -> int:
        """Numbers a row, over all columns."""
        return sum(self.sizes)

    def batches(self, num_rows: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the first row's index and the inputs [num_rows, D] of consecutive batches, columns side by side."""
        for start in range(0, len(self.missing_N), num_rows):
            parts = [column[start : start + num_rows] for column in self.columns]
            yield start, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def read_states(labels: pa.RecordBatch, columns: Sequence[str]) -> States:
    """Return the ``fixed_size_list`` columns of a batch without a copy, and its scalar columns.

    Raises:
        SourceError: a column is missing, or is neither a fixed-size list of floating-point numbers nor a number.
    """
    missing_N = np.zeros(labels.num_rows, dtype=np.bool_)
    views = []
    for name in columns:
        if name not in labels.schema.names:
            raise SourceError(f"labels: column {name} is missing; {describe_mend(name)}")
        array = labels.column(name)
        if is_number(name):
            missing_N |= array.is_null().to_numpy(zero_copy_only=False)
            numbers = pc.fill_null(array.cast(pa.float32()), 0)
            views.append(torch.from_numpy(np.array(numbers, dtype=np.float32)[:, None]))
            continue
        if not pa.types.is_fixed_size_list(array.type) or not pa.types.is_floating(array.type.value_type):
            raise SourceError(f"labels: column {name} is {array.type}, not a fixed-size list of floating-point numbers")
        size, values = array.type.list_size, array.values
        # ``values`` ignores the slice and holds a slot for null rows too; without its validity bitmap DLPack takes it.
        offset = values.offset + array.offset * size
        flat = pa.Array.from_buffers(values.type, len(array) * size, [None, values.buffers()[1]], offset=offset)
        views.append(from_dlpack(flat).reshape(len(array), size))
        missing_N |= array.is_null().to_numpy(zero_copy_only=False)
        if values.null_count:
            slots = values.slice(array.offset * size, len(array) * size).is_null().to_numpy(zero_copy_only=False)
            missing_N |= slots.reshape(len(array), size).any(axis=1)
    return States(columns=tuple(views), missing_N=missing_N)

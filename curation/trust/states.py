"""The base class of trust functions that read hidden states, and their inputs as views of a batch's memory."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple, Self

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
from curation.trust.folded import PrincipalComponents

SCORE_ROWS = 512
"""Number of rows per forward pass in scoring; their states and the outputs of a layer stay in a core's cache."""


class HeldOutScores(NamedTuple):
    """The labelled rows of a fit, ascending by row id, and their raw scores by weights that have not seen them."""

    row_ids_N: Int64s
    raw_N: Scores
    """NaN where every weight has seen the row, or an earlier row that asks the same question."""


class StateTrust(ABC):
    """A trust function that computes a logit from hidden states and, optionally, numbers of the answer.

    Trust is the calibrated sigmoid of the logit.
    """

    kind: ClassVar[str]
    """The name of the class in saved descriptions."""
    size: int
    """The number of values per row of the fit, over all inputs, after their projection."""
    weights: Mapping[str, Tensor]
    """The fitted weights, by name."""
    _folded: Any = None
    """The folded weights, made by the first call of :meth:`raw_of`."""
    default_pca: ClassVar[int | None] = None
    """The maximum number of the states' principal components to read if ``trust.pca`` is unset; ``None`` means to read
    the states themselves."""

    def __init__(self, inputs: Sequence[str], fit: JsonView) -> None:
        self.inputs = tuple(inputs)
        """The names of the states and scalar columns that the function reads (``TrustConfig.inputs``)."""
        self.fit = fit
        """The origin of the fit's rows, and notes on the fit, as JSON."""
        self.own: JsonView = {}
        """Entries of the description, as JSON, that :meth:`made` reads beside those of every trust function."""
        self.calibration = Calibration()
        self.pca: PrincipalComponents | None = None
        """The projection applied to the states before they are read (``TrustConfig.pca``)."""
        self.held_out: HeldOutScores | None = None
        """The rows of the fit with their held-out scores."""

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the inputs, in their order."""
        return tuple(get_input_column(name) for name in self.inputs)

    @abstractmethod
    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row of concatenated inputs, float32 [N]; with ``pca``, pass projected inputs."""

    @classmethod
    @abstractmethod
    def made(cls, weights: Mapping[str, Tensor], description: Mapping[str, object]) -> Self:
        """Make the trust function of these weights and description, without its calibration and projection."""

    def raw(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row of concatenated inputs as they are stored, float32 [N]."""
        return self.logits(hidden_ND if self.pca is None else self.pca.project(hidden_ND))

    def raw_with(self, hidden_ND: Tensor, numbers_NK: Float64s, names: Sequence[str]) -> Scores:
        """Return the raw score of each row of a fit, float32 [N]; its answer's numbers are separate, NaN for null."""
        return self.raw(hidden_ND)

    def raw_of(self, columns: Sequence[Tensor]) -> Scores:
        """Return the logit of each row, float32 [N], from separate columns of inputs, as a scan reads them.

        The result equals :meth:`raw` up to rounding. A subclass overrides this if it need not concatenate the columns.
        """
        return self.raw(columns[0] if len(columns) == 1 else torch.cat(tuple(columns), dim=1))

    def with_pca(self, pca: PrincipalComponents | None) -> Self:
        """Attach the projection, if any, on whose output this trust function was fitted, and return the function."""
        if pca is None:
            return self
        self.pca = pca
        return self.noted(variance_kept=pca.variance_kept)

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the logit of each row, float32 [N]; NaN where an input is null.

        Raises:
            SourceError: a column is missing, or the states differ in size from those of the fit.
        """
        columns, missing_N = self._read(labels)
        raw_N = np.empty(labels.num_rows, dtype=np.float32)
        for start in range(0, labels.num_rows, SCORE_ROWS):
            rows = slice(start, start + SCORE_ROWS)
            raw_N[rows] = self.raw_of([column[rows] for column in columns])
        raw_N[missing_N] = np.nan
        return raw_N

    def _read(self, labels: pa.RecordBatch) -> tuple[Sequence[Any], Bools]:
        """Return the columns that :meth:`raw_of` takes, and whether each row lacks an input, bool [N]."""
        width, size = (0, 0) if self.pca is None else self.pca.shape
        return read_states(labels, self.features, self.size - size + width)

    def source_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the raw scores of source rows: held-out scores or NaN for rows of the fit, else :meth:`raw_score`."""
        raw_N = self.raw_score(labels)
        if self.held_out is not None and len(self.held_out.row_ids_N):
            fit_M, row_ids_N = self.held_out.row_ids_N, labels.column("row_id").to_numpy()
            places_N = np.minimum(np.searchsorted(fit_M, row_ids_N), len(fit_M) - 1)
            of_fit_N = fit_M[places_N] == row_ids_N
            raw_N[of_fit_N] = self.held_out.raw_N[places_N[of_fit_N]]
        return raw_N

    def description(self) -> Json:
        """Return the description that :meth:`save` writes beside the weights, as JSON."""
        return {
            "kind": self.kind,
            "made_by": f"{type(self).__module__}:{type(self).__qualname__}",
            "inputs": self.inputs,
            "calibration": asdict(self.calibration),
            "pca": self.pca and {"variance_kept": self.pca.variance_kept, "num_rows": self.pca.num_rows},
            "fit": self.fit,
            **self.own,
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
        return trust

    def noted(self, **notes: object) -> Self:
        """Add notes on the fit to its record and return this trust function."""
        self.fit = {**self.fit, **notes}
        return self

    def save(self, directory: Place) -> TrustRef:
        """Write weights and description into ``directory``, which is made if missing."""
        return saved.save(directory, self.saved_weights(), self.description())

    def saved_weights(self) -> dict[str, Tensor]:
        """Return the weights to save, including the projection and the held-out scores if there are any."""
        weights = dict(self.weights)
        if self.pca is not None:
            weights |= {"pca.mean_D": self.pca.mean_D, "pca.components_DK": self.pca.components_DK}
        if self.held_out is not None:
            weights |= {f"held_out.{name}": torch.from_numpy(of) for name, of in self.held_out._asdict().items()}
        return weights


def select_under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): of for name, of in weights.items() if name.startswith(prefix)}


def compute_class_weights(correct_N: Bools, strength: float, name: str) -> dict[int, float]:
    """Return the weight of a row in a scikit-learn fit, by the row's class: (N / (2 N_c)) ** ``strength``.

    Raises:
        DegenerateSourceError: all labels are right, or all are wrong; ``name`` says what was to be fitted.
    """
    counts_2 = np.bincount(correct_N, minlength=2)
    if not counts_2.all():
        raise DegenerateSourceError(
            f"{name}: {counts_2[1]} of {len(correct_N)} weak labels are right, but both right and wrong ones are "
            "needed; give more source rows or another teacher"
        )
    return dict(enumerate(((len(correct_N) / (2 * counts_2)) ** strength).tolist()))


class States(NamedTuple):
    """Hidden states of N rows, as views of Arrow's memory, and scalar columns."""

    columns: tuple[Tensor, ...]
    """States [N, D] in their stored type, scalar columns as float32 [N, 1]; values of a missing row are undefined."""
    missing_N: Bools
    """Whether any input of each row is null, bool [N]."""


def read_states(labels: pa.RecordBatch, columns: Sequence[str], fitted: int | None = None) -> States:
    """Return the ``fixed_size_list`` columns of a batch without a copy, and its scalar columns.

    Raises:
        SourceError: a column is missing, or is neither a fixed-size list of floating-point numbers nor a number; or a
            row has another number of values than ``fitted``, that of a fit.
    """
    missing_N = np.zeros(labels.num_rows, dtype=np.bool_)
    views = []
    for name in columns:
        if name not in labels.schema.names:
            raise SourceError(f"labels: column {name} is missing; {describe_mend(name)}")
        array = labels.column(name)
        missing_N |= array.is_null().to_numpy(zero_copy_only=False)
        if is_number(name):
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
        if values.null_count:
            slots = values.slice(array.offset * size, len(array) * size).is_null().to_numpy(zero_copy_only=False)
            missing_N |= slots.reshape(len(array), size).any(axis=1)
    num = sum(view.shape[1] for view in views)
    if fitted is not None and num != fitted:
        raise SourceError(
            f"{', '.join(columns)}: {num} numbers a row, but the trust function was fitted on {fitted}; "
            "score the labels of the teacher that it was fitted for"
        )
    return States(tuple(views), missing_N)

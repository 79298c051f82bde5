"""Checks that a package's rows can be read, and that its trust functions return numbers.

Digests say nothing about what files contain, so the functions score a few rows of noise before any row is labelled.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from curation.errors import CurationError, PackageError
from curation.filter.package.folder import TrustPackage
from curation.label_columns import is_from_domain
from curation.refs import TrustRef
from curation.tables import schemas
from curation.trust import load_fitted

NUM_ROWS = 4
_PROBLEMS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pa.ArrowException,
    CurationError,
)


def check_content(package: TrustPackage) -> None:
    """Refuse a package whose rows cannot be read, or whose trust functions cannot score rows of its teacher.

    If weights had other shapes than the description says, or were NaN, no row could be selected after hours of
    labelling.

    Raises:
        PackageError: a part is invalid; the message names it and the problem.
    """
    described = package.description
    if described.calibration is not None:
        package.calibration()
    for part in described.parts.values():
        part.check(package)
    if described.sample.num_texts:
        package.words()
    further = [state for part in described.parts.values() for state in part.inputs]
    for state, states_ND in package.reference(further).items():
        if states_ND.shape[1:] != (described.state_size,) or not np.isfinite(states_ND).all():
            raise PackageError(
                f"{package.uri}: the sample of the state {state} has the shape {states_ND.shape} or holds what is no "
                f"number, and a state has {described.state_size} numbers; copy or export the package again"
            )
    _check_scores(package, package.trust, described.ask.states)
    for name, part in described.parts.items():
        _check_scores(package, package.functions[name], part.inputs)


def _check_scores(package: TrustPackage, ref: TrustRef, states: Sequence[str]) -> None:
    described, name = package.description, ref.uri.rsplit("/", 1)[-1]
    try:
        function = load_fitted(ref)
        added = [pa.field(name, schemas.GIVEN_TYPE) for name in function.features if is_from_domain(name)]
        ask = described.ask
        schema = schemas.make_labels_schema(states, ask.state_dtype, described.state_size, ask.token_logprobs, added)
        raw_N = function.raw_score(_make_noise(schema))
    except _PROBLEMS as error:
        raise PackageError(
            f"{package.uri}: its trust function {name} cannot score rows of its teacher ({error}); copy or export the "
            "package again"
        ) from error
    if raw_N.shape != (NUM_ROWS,) or not np.isfinite(raw_N).all():
        raise PackageError(
            f"{package.uri}: its trust function {name} scores {NUM_ROWS} rows of plain numbers as {raw_N.tolist()}, so "
            "it holds what is no number, and no row could be ranked by it; copy or export the package again"
        )


def _make_noise(schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a labels table whose states are normal and whose numbers are 1."""
    rng = np.random.default_rng(0)
    columns = []
    for field in schema:
        if pa.types.is_fixed_size_list(field.type):
            numbers = rng.normal(size=NUM_ROWS * field.type.list_size)
            values = pa.array(numbers.astype(field.type.value_type.to_pandas_dtype()))
            columns.append(pa.FixedSizeListArray.from_arrays(values, field.type.list_size))
        elif field.name == schemas.ROW_ID.name:
            columns.append(pa.array(range(NUM_ROWS), field.type))
        elif field.name == schemas.ERROR.name or not pa.types.is_primitive(field.type):
            columns.append(pa.nulls(NUM_ROWS, field.type))
        else:
            columns.append(pa.array([1] * NUM_ROWS).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)

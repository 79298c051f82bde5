"""Pairs of answers shown in both orders, to measure how far a teacher's preference survives the other order.

The second question is asked in the labelling pass, for rows whose first answer states a label, if the domain has
``both_orders`` and a method ``other_order``. Its outcome is a further column of the labels table (``ORDER_AGREEMENT``),
which trust reads and an arm ranks by. It is 1 or 0 if the teacher scores no options but draws an answer, as a server of
kind openai or sglang does. Further columns count the tokens of the second question.
"""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import get_given_numbers
from curation.hashing import derive
from curation.label_columns import ORDER_AGREEMENT, TOKEN_COLUMNS
from curation.signals import label_request
from curation.tables.schemas import GIVEN_TYPE
from curation.teachers import Teacher

OtherOrder = Callable[[str, Example], tuple[str, Example]]
SecondAnswers = Mapping[str, Mapping[int, float | None]]
_READ = ("row_id", "completion", "option_share", "error")
_TOKENS = {second: first for first, second in TOKEN_COLUMNS.values()}
_COLUMNS = (pa.field(ORDER_AGREEMENT, pa.float32()), *(pa.field(name, pa.int32()) for name in _TOKENS))


def get_other_order(domain: Domain) -> OtherOrder | None:
    """Return the function that puts a label and its example into the other order, or None if one order is asked."""
    found: OtherOrder | None = getattr(domain, "other_order", None)
    is_both = getattr(domain, "both_orders", False) and not hasattr(domain, "given_numbers")
    return found if is_both else None


def list_added_columns(domain: Domain) -> tuple[pa.Field, ...]:
    """Return the columns that a domain adds to labels: given numbers, and those of the second order."""
    given = (pa.field(name, GIVEN_TYPE) for name in get_given_numbers(domain))
    return (*given, *(() if get_other_order(domain) is None else _COLUMNS))


def count_orders(batch: pa.RecordBatch) -> Mapping[str, int]:
    """Return counts of ``curation.stages.label.LabelCounts`` of labels in both orders; none of labels in one order."""
    if ORDER_AGREEMENT not in batch.schema.names:
        return {}
    agreement = batch.column(ORDER_AGREEMENT)
    return {
        "both_orders": len(agreement) - agreement.null_count,
        "disagreeing": pc.sum(pc.less(agreement, 0.5)).as_py() or 0,
        "order_tokens": sum(pc.sum(batch.column(name)).as_py() or 0 for name in _TOKENS),
    }


def ask_other_order(
    domain: Domain,
    teacher: Teacher,
    answers: Iterable[pa.RecordBatch],
    by_id: Mapping[int, Example],
    decoding: DecodingConfig,
    seed: int,
) -> tuple[Iterable[pa.RecordBatch], SecondAnswers]:
    """Return the answers in the first order (``schemas.make_completions_schema``), and those in the other order.

    The latter are the probability of the same answer, and the tokens that the question took. Rows without a label have
    none, and rows whose second question fails have no probability; without a second order, no row has any.
    """
    if (turned := get_other_order(domain)) is None:
        return answers, {}
    batches, requests = list(answers), []
    expected: dict[int, tuple[str, Example]] = {}
    for batch in batches:
        for row in batch.select(["row_id", "completion", "error"]).to_pylist():
            if row["error"] is not None or row["completion"] is None:
                continue
            example = by_id[row["row_id"]]
            label, _ = attempt(domain.parse, row["completion"], example)
            if label is not None:
                expected[row["row_id"]] = turned(label, example)
                requests.append(label_request(domain, row["row_id"], expected[row["row_id"]][1]))
    values: dict[str, dict[int, float | None]] = {field.name: {} for field in _COLUMNS}
    second = teacher.label(requests, decoding, seed=derive(seed, "other order"), states=False) if requests else ()
    for batch in second:
        for row in batch.select([*_READ, *_TOKENS.values()]).to_pylist():
            row_id, share = row["row_id"], None
            label, example = expected[row_id]
            stated = None if row["error"] is not None else attempt(domain.parse, str(row["completion"]), example)[0]
            if stated is not None:  # the share is that of the likelier of two options; a drawn answer has none
                likelier = 1.0 if row["option_share"] is None else row["option_share"]
                share = likelier if stated == label else 1 - likelier
            values[ORDER_AGREEMENT][row_id] = share
            for name, column in _TOKENS.items():
                values[name][row_id] = row[column]
    return batches, values

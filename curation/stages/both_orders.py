"""Pairs of answers that are shown in both orders: how far a teacher's preference survives the other one.

The second question is asked in the labelling pass, of rows whose first answer states a label. Its outcome is one more
number of the labels table (``ORDER_AGREEMENT``), which trust reads and an arm ranks by. It is 1 or 0 where a
teacher scores no options but draws an answer, as a server of kind openai or sglang does.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import given_numbers
from curation.given_columns import ORDER_AGREEMENT
from curation.hashing import derive
from curation.signals import label_request
from curation.teachers import Teacher

OtherOrder = Callable[[str, Example], tuple[str, Example]]
Values = Mapping[int, float | None]


def other_order(domain: Domain) -> OtherOrder | None:
    """The function from a label and an example to both as the other order has them; ``None``: one order is asked."""
    found: OtherOrder | None = getattr(domain, "other_order", None)
    return found if getattr(domain, "both_orders", False) else None


def added_numbers(domain: Domain) -> tuple[str, ...]:
    """The number columns of a labels table that follow from the domain: given ones, and the agreement of orders."""
    return (*given_numbers(domain), *([] if other_order(domain) is None else [ORDER_AGREEMENT]))


def agreements(
    domain: Domain,
    teacher: Teacher,
    batches: Sequence[pa.RecordBatch],
    by_id: Mapping[int, Example],
    decoding: DecodingConfig,
    seed: int,
) -> dict[int, float | None]:
    """The probability that the other order gives to the same answer, by row id; none for rows without a label.

    ``batches`` are the answers in the first order (``schemas.completions``). Rows whose second question fails have
    none.
    """
    turned, requests = other_order(domain), []
    assert turned is not None, "asked of domains with two orders"
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
    values: dict[int, float | None] = {}
    second = teacher.label(requests, decoding, seed=derive(seed, "other order"), states=False) if requests else ()
    for batch in second:
        for row in batch.select(["row_id", "completion", "option_share", "error"]).to_pylist():
            values[row["row_id"]] = _share(domain, *expected[row["row_id"]], row)
    return values


def _share(domain: Domain, label: str, example: Example, answer: Mapping[str, object]) -> float | None:
    """The probability of a label's option, of two options of which ``option_share`` is that of the likelier one.

    An answer that is drawn has no such share: 1 where it states the label, 0 where it states the other one.
    """
    if answer["error"] is not None:
        return None
    stated, _ = attempt(domain.parse, str(answer["completion"]), example)
    share = found if isinstance(found := answer["option_share"], float) else 1.0
    return None if stated is None else share if stated == label else 1 - share

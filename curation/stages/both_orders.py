"""Pairs of answers shown in both orders, to measure how far a teacher's preference survives the other order.

The second question is asked in the labelling pass, for rows whose first answer states a label. Its outcome is a
further column of the labels table (``ORDER_AGREEMENT``), which trust reads and an arm ranks by. It is 1 or 0 if the
teacher scores no options but draws an answer, as a server of kind openai or sglang does. Further columns count the
tokens of the second question.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from curation.config import DecodingConfig
from curation.domains import Domain, Example, attempt
from curation.domains.given import get_given_numbers
from curation.hashing import derive
from curation.label_columns import ORDER_AGREEMENT, ORDER_COLUMNS, ORDER_OUTPUT_TOKENS, ORDER_PROMPT_TOKENS
from curation.signals import label_request
from curation.teachers import Teacher

OtherOrder = Callable[[str, Example], tuple[str, Example]]
SecondAnswers = Mapping[str, Mapping[int, float | None]]
"""Values by row id for each of ``ORDER_COLUMNS``."""
_READ = ("row_id", "completion", "option_share", "error")
_TOKENS = {ORDER_PROMPT_TOKENS: "num_prompt_tokens", ORDER_OUTPUT_TOKENS: "num_output_tokens"}


def get_other_order(domain: Domain) -> OtherOrder | None:
    """Return the function that puts a label and its example into the other order, or None if one order is asked."""
    found: OtherOrder | None = getattr(domain, "other_order", None)
    return found if getattr(domain, "both_orders", False) else None


def list_added_numbers(domain: Domain) -> tuple[str, ...]:
    """Return the names of the columns that a domain adds to labels: given numbers, and those of the second order."""
    return (*get_given_numbers(domain), *(() if get_other_order(domain) is None else ORDER_COLUMNS))


def ask_other_order(
    domain: Domain,
    teacher: Teacher,
    batches: Sequence[pa.RecordBatch],
    by_id: Mapping[int, Example],
    decoding: DecodingConfig,
    seed: int,
) -> SecondAnswers:
    """Return the probability that the other order gives to the same answer, and the tokens that this took, by row id.

    ``batches`` are the answers in the first order (``schemas.make_completions_schema``). Rows without a label have no
    values, and rows whose second question fails have no probability.
    """
    turned, requests = get_other_order(domain), []
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
    values: dict[str, dict[int, float | None]] = {name: {} for name in ORDER_COLUMNS}
    second = teacher.label(requests, decoding, seed=derive(seed, "other order"), states=False) if requests else ()
    for batch in second:
        for row in batch.select([*_READ, *_TOKENS.values()]).to_pylist():
            row_id = row["row_id"]
            values[ORDER_AGREEMENT][row_id] = _compute_share(domain, *expected[row_id], row)
            for name, column in _TOKENS.items():
                values[name][row_id] = row[column]
    return values


def _compute_share(domain: Domain, label: str, example: Example, answer: Mapping[str, object]) -> float | None:
    """Return the probability of a label's option, out of two; ``option_share`` is that of the likelier option.

    A drawn answer counts as 1 if it states the label, else 0. None if the answer failed or states no label.
    """
    if answer["error"] is not None:
        return None
    stated, _ = attempt(domain.parse, str(answer["completion"]), example)
    share = found if isinstance(found := answer["option_share"], float) else 1.0
    return None if stated is None else share if stated == label else 1 - share

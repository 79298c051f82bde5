"""Names of columns of a labels table: numbers that each has, and what only some domains have.

Those of some domains are labels made elsewhere, and both orders.
"""

import re
from typing import Literal

LabelNumber = Literal[
    "mean_logprob",
    "min_logprob",
    "first_logprob",
    "last_logprob",
    "margin",
    "negentropy",
    "option_share",
    "option_lead",
    "num_options",
    "min_margin",
    "first_margin",
    "last_margin",
    "min_negentropy",
    "first_negentropy",
    "last_negentropy",
    "num_prompt_tokens",
    "num_output_tokens",
    "truncated",
]
"""A number of a row that each labelling stores (``curation.tables.schemas.make_completions_schema`` says what it
means)."""

_PREFIX = "given_"
WEAK_COMPLETION = "weak_completion"
"""A column of an examples table: the completion that came with a row."""


ORDER_AGREEMENT = "order_agreement"
"""A number of pairs of answers that are asked about in both orders (``curation.tables.schemas.make_labels_schema``)."""
ORDER_PROMPT_TOKENS, ORDER_OUTPUT_TOKENS = "order_prompt_tokens", "order_output_tokens"
"""The tokens that the second order of such a pair took; no trust function reads them."""
ORDER_COLUMNS = (ORDER_AGREEMENT, ORDER_PROMPT_TOKENS, ORDER_OUTPUT_TOKENS)


def make_given_column(name: str) -> str:
    """Return the column of a number that came with labels made elsewhere, by its name in the source: ``given_<name>``.

    Signs that are no letter, digit or underscore become underscores, since in Lance a dot leads into a column.
    """
    return _PREFIX + re.sub(r"\W", "_", name)


def is_given(column: str) -> bool:
    """Return whether a column's name is of :func:`make_given_column`'s form, as is the arm that ranks by it."""
    return column.startswith(_PREFIX) and column != _PREFIX


def is_from_domain(column: str) -> bool:
    """Return whether a number of labels follows from the domain: a given one, or the agreement of both orders."""
    return column == ORDER_AGREEMENT or is_given(column)


def describe_column(column: str) -> str:
    """Return the column in words: ``given confidence``."""
    return column.replace("_", " ")

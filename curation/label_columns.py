"""Names of columns of a labels table: numbers that every table has, and those that only some domains have.

The latter are numbers that came with labels made elsewhere, and those of pairs asked about in both orders.
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
"""The name of a number that every labelling stores for each row; ``curation.tables.schemas.make_completions_schema``
describes them."""

_PREFIX = "given_"
WEAK_COMPLETION = "weak_completion"
"""The column of an examples table with the completion that came with each row."""


ORDER_AGREEMENT = "order_agreement"
"""The column with the agreement of a pair's answers in both orders (``curation.tables.schemas.make_labels_schema``)."""
ORDER_PROMPT_TOKENS, ORDER_OUTPUT_TOKENS = "order_prompt_tokens", "order_output_tokens"
"""Columns with the tokens that the question in the second order took; no trust function reads them."""
ORDER_COLUMNS = (ORDER_AGREEMENT, ORDER_PROMPT_TOKENS, ORDER_OUTPUT_TOKENS)


def make_given_column(name: str) -> str:
    """Return the column of a number that came with labels made elsewhere, by its name in the source: ``given_<name>``.

    Characters other than letters, digits and underscores become underscores, since Lance reads a dot as nesting.
    """
    return _PREFIX + re.sub(r"\W", "_", name)


def is_given(column: str) -> bool:
    """Return whether the name of a column, or of an arm that ranks by it, is one of :func:`make_given_column`."""
    return column.startswith(_PREFIX) and column != _PREFIX


def is_from_domain(column: str) -> bool:
    """Return whether only some domains have a column: that of a given number, or the agreement of both orders."""
    return column == ORDER_AGREEMENT or is_given(column)


def describe_column(column: str) -> str:
    """Return the name of a column in words, e.g. ``given confidence``."""
    return column.replace("_", " ")

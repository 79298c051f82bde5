"""Names of columns of a labels table: numbers that every table has, and those that only some domains have.

The latter are numbers that came with labels made elsewhere, and those of pairs asked about in both orders.
"""

import re
from collections.abc import Mapping
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
"""A number that every labelling stores for each row (``curation.tables.schemas.make_completions_schema``)."""
DomainNumber = Literal["order_agreement"]
"""The name of a number that only labels of some domains have (``curation.config.inputs.DomainTraits``)."""
ORDER_AGREEMENT: DomainNumber = "order_agreement"
"""The probability that the teacher gives to its chosen answer if the two are shown in the other order; below a half,
its preference follows the order. Null if the second question has no answer."""
DOMAIN_NUMBERS: Mapping[str, str] = {
    ORDER_AGREEMENT: "it is of the domain pair, which asks both orders of two answers unless both_orders is false"
}
"""The numbers of :data:`DomainNumber`, each with a sentence on the domain that has it."""
NUMBER_NEEDS: Mapping[str, str] = {
    ORDER_AGREEMENT: "answers in both orders, as the domain pair asks unless both_orders is false"
}
"""The needs, in words, of a part of a run that reads a number of :data:`DomainNumber`."""
TOKEN_COLUMNS = {kind: (f"num_{kind}_tokens", f"order_{kind}_tokens") for kind in ("prompt", "output")}
"""Columns with the numbers of tokens, by kind: of a row's question, and of the same question in the second order. The
latter are null where that was not asked, and no trust function reads them."""
WEAK_COMPLETION = "weak_completion"
"""The column of an examples table with the completion that came with each row."""
_PREFIX = "given_"


def make_given_column(name: str) -> str:
    """Return ``given_<name>`` for a number of the source, other signs as underscores: Lance reads a dot as nesting."""
    return _PREFIX + re.sub(r"\W", "_", name)


def is_given(column: str) -> bool:
    """Return whether the name of a column, or of an arm that ranks by it, is one of :func:`make_given_column`."""
    return column.startswith(_PREFIX) and column != _PREFIX


def is_from_domain(column: str) -> bool:
    """Return whether a column is a number that only some domains have: of ``DOMAIN_NUMBERS``, or a given one."""
    return column in DOMAIN_NUMBERS or is_given(column)

"""Prices of machines and of storage, from which ``curate plan`` and the report compute money."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from curation.config.base import Section

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PricesConfig(Section):
    """Prices, all optional: items without a price are not in the sum.

    No stage reads prices, so a change redoes nothing.
    """

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Three capital letters (ISO 4217), for display alone: nothing is converted."""
    gpu_hour: Price | None = None
    """Price of one GPU for an hour, with its share of the node."""
    cpu_hour: Price | None = None
    """Price of one CPU for an hour."""
    node_hour: Price | None = None
    """Price of a whole node for an hour, in place of the two above; a node counts for as many actors as fit on it."""
    storage_gb_month: Price | None = None
    """Price of a gigabyte (10^9 bytes) in the run directory's store for a month."""
    per_1000_puts: Price | None = None
    """Price of a thousand requests that write to the object store."""
    per_1000_gets: Price | None = None
    """Price of a thousand requests that read from the object store."""
    per_million_prompt_tokens: Price | None = None
    """Price of a million tokens that the first teacher reads. Unset: ``teacher.endpoint.price``, if given."""
    per_million_output_tokens: Price | None = None
    """Price of a million tokens that the first teacher writes."""

    @model_validator(mode="after")
    def _one_machine(self) -> Self:
        if self.node_hour is not None and not (self.gpu_hour is None and self.cpu_hour is None):
            raise ValueError("node_hour pays for all of a node: give it, or gpu_hour and cpu_hour, not both")
        return self

"""Prices of machines and of storage, from which ``curate plan`` and the report compute money."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from curation.config.base import Section

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PricesConfig(Section):
    """Prices, each of which may be left out: what has no price is not in the sum.

    No stage reads them: another price redoes nothing.
    """

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Three capital letters (ISO 4217), for display alone: nothing is converted."""
    gpu_hour: Price | None = None
    """One GPU for an hour, with its share of the node."""
    cpu_hour: Price | None = None
    """One CPU for an hour."""
    node_hour: Price | None = None
    """A whole node for an hour, in place of the two above: as many actors are counted a node as fit on one."""
    storage_gb_month: Price | None = None
    """A gigabyte (10^9 bytes) in the run directory's store for a month."""
    per_1000_puts: Price | None = None
    """A thousand requests that write to the object store."""
    per_1000_gets: Price | None = None
    """A thousand requests that read from the object store."""
    per_million_prompt_tokens: Price | None = None
    """A million tokens that the first teacher reads; unset: ``teacher.endpoint.price``, where that is given."""
    per_million_output_tokens: Price | None = None
    """A million tokens that it writes."""

    @model_validator(mode="after")
    def _one_machine(self) -> Self:
        if self.node_hour is not None and not (self.gpu_hour is None and self.cpu_hour is None):
            raise ValueError("node_hour pays for all of a node: give it, or gpu_hour and cpu_hour, not both")
        return self

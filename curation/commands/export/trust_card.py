"""The page of a trust package: the facts of its description, for people."""

from curation.commands.export.card import template
from curation.filter.package import Description


def trust_card_of(description: Description) -> str:
    """``README.md``, from nothing but the description."""
    return template("trust_card.md.j2").render(description.model_dump(mode="json"))

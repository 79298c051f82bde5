"""The page of a trust package: the facts of its description, for people."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from curation.commands.export.card import number, plain, share
from curation.package import Description


def trust_card_of(description: Description) -> str:
    """``README.md``, from nothing but the description."""
    return _template().render(description.model_dump(mode="json"))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("curation.commands.export", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(share=share, number=number, plain=plain)
    return environment.get_template("trust_card.md.j2")

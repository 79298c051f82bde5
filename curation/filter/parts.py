"""Optional parts of a trust package, each owned by a feature (``Feature.package``)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from curation.config.base import Section
from curation.refs import TrustRef


class PackagePart(Section):
    """The description of a part: a fitted trust function, in a folder of the feature's name, and further files."""

    TITLE: ClassVar[str]
    """The part in words, for people."""
    FILES: ClassVar[tuple[str, ...]] = ()
    """Names of the part's files, without those of its trust function."""

    inputs: tuple[str, ...]
    """Teacher's states that the function reads, in order."""
    words: str
    """Description of the part, in a sentence."""

    def check(self, package: Any) -> None:
        """Refuse a ``TrustPackage`` whose files of the part cannot be read, by a ``PackageError``."""


class PartFiles(NamedTuple):
    """The files of a part: its fitted function, and a function that writes the others into a package's folder."""

    trust: TrustRef
    write: Callable[[Path], None]

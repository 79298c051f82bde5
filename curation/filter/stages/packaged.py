"""Stages that work by a trust package."""

from collections.abc import Collection

from curation.filter.package import TrustPackage, load
from curation.rundir.graph import Inputs, setting


class Packaged(Inputs):
    """The package of a stage: its digest is part of the key, its place is not."""

    package: str
    """The digest."""
    uri: str = setting()
    allow_code: Collection[str] = setting()
    """The code that the package may name."""

    def loaded(self) -> TrustPackage:
        """The package."""
        return load(self.uri, allow_code=self.allow_code)

"""Stages that work by a trust package, and those of them that compare rows which pass a first cut."""

from collections.abc import Collection

from curation.filter.package import TrustPackage, load
from curation.json_types import Json
from curation.rundir.graph import Inputs, Stage, setting
from curation.stages.first_cut import Passing, passing


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


class ComparesPassing(Stage, Packaged):
    """Compares rows with the package's; with a first cut, on both sides those that pass it."""

    first_cut: dict[str, float] | None = None

    @property
    def inputs(self) -> Json:
        """The arguments on which the comparison depends; without a first cut, that is none of them."""
        return {name: value for name, value in super().inputs.items() if name != "first_cut" or value is not None}

    def passing(self, package: TrustPackage) -> Passing | None:
        """Which rows pass the first cut, by their states; None without one."""
        if self.first_cut is None:
            return None
        assert package.first is not None, "settle refuses a package without"
        return passing(package.first, self.first_cut["threshold"])

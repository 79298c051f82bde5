"""The facts of a trust package in stages: its digest, which is part of their keys, and its place, which is not."""

from collections.abc import Collection

from curation.filter.package import TrustPackage, load
from curation.json_types import Json
from curation.rundir.graph import Inputs, setting
from curation.stages.asking import TeacherUse


class PackagedTeacher(TeacherUse):
    """The teacher of a package, which says what is answered: the digest stands for the model and how it is asked."""

    package: str
    """The digest."""

    @property
    def inputs(self) -> Json:
        """Inputs that its answers depend on: not how it runs, or where it lies."""
        return {"package": self.package, "backend": self.ask.backend}


class Packaged(Inputs):
    """The package of a stage: its digest is part of the key, its place is not."""

    package: str
    """The digest."""
    uri: str = setting()
    allow_code: Collection[str] = setting()
    """The code that the package may name."""

    def loaded(self) -> TrustPackage:
        """Return the package."""
        return load(self.uri, allow_code=self.allow_code)

"""The trust package as an input of stages: its digest is part of their cache keys, its place is not."""

from collections.abc import Collection

from curation.filter.package.folder import TrustPackage, load
from curation.json_types import Json
from curation.rundir.graph import Inputs, setting
from curation.stages.asking import TeacherUse


class PackagedTeacher(TeacherUse):
    """The teacher of a package; the package's digest represents the model and how it is asked."""

    package: str
    """Digest of the package."""

    @property
    def inputs(self) -> Json:
        """The inputs on which the teacher's answers depend, without its place and how it runs."""
        return {"package": self.package, "backend": self.ask.backend}


class Packaged(Inputs):
    """The package of a stage; its digest is part of the cache key, its place is not."""

    package: str
    """Digest of the package."""
    uri: str = setting()
    allow_code: Collection[str] = setting()
    """Code that the package may name."""

    def loaded(self) -> TrustPackage:
        """Read and return the package."""
        return load(self.uri, allow_code=self.allow_code)

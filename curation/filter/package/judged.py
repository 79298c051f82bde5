"""The verdict of a run on the trust function of its package, and the refusal of one that is not to be used."""

from curation.errors import PackageError
from curation.filter.package.description import STOP
from curation.filter.package.folder import TrustPackage

UNJUDGED = "no report of its run judged this trust function when it was exported, so nobody says whether to use it"


def check_verdict(package: TrustPackage, *, anyway: bool = False) -> str | None:
    """A warning about the package's verdict, or its absence; ``None`` where the verdict lets it be used.

    Raises:
        PackageError: the verdict is "do not use", and ``anyway`` is not set.
    """
    found = package.description.verdict
    if found is None:
        return f"{package.uri}: {UNJUDGED}; export it again when `curate report` has made one"
    if found.level != STOP:
        return None
    words = f"{package.uri}: the verdict of its run {package.description.made.run!r}: {found.sentence}"
    if not anyway:
        raise PackageError(
            f"{words} Nothing is labelled by it; mend the run ({found.next}) and export it again, or use it all the "
            "same by --anyway (anyway: true in a configuration, Filter.load(..., anyway=True))"
        )
    return words

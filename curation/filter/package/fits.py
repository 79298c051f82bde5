"""Whether a trust package fits what it is to be used with: teacher, domain, states."""

from collections.abc import Collection

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.errors import PackageError
from curation.filter.package.folder import TrustPackage
from curation.filter.package.questions import differs
from curation.filter.package.teacher import check_teacher
from curation.refs import ModelRef


def check_fits(
    package: TrustPackage,
    *,
    teacher: ModelRef | None = None,
    domain: DomainConfig | None = None,
    states: Collection[str] | None = None,
    state_size: int | None = None,
) -> None:
    """Refuse a package for another teacher, domain or states than it is given; unset ones are not compared.

    The domain of this version must ask and read the stored questions as the package's run did, in any case.

    Raises:
        PackageError: with what the package says and what it was given.
        ConfigError: the domain cannot be made.
    """
    fitted = package.description
    if teacher is not None:
        check_teacher(package, teacher)
    if domain is not None and domain != fitted.domain:
        raise PackageError(
            f"{package.uri}: was fitted on rows of the domain {_shown(fitted.domain)}, and is given those of "
            f"{_shown(domain)}; use a package of that domain"
        )
    if (different := differs(as_asked(get_domain(fitted.domain), fitted.decoding), fitted.questions)) is not None:
        raise PackageError(
            f"{package.uri}: the domain {_shown(fitted.domain)} is another version than the package's: {different}; "
            "trust was fitted on answers to the package's prompts: install the version that wrote it "
            f"({fitted.versions.get('trust-curation', 'unknown')}), or export a package of a new run"
        )
    if states is not None and (missing := [state for state in fitted.ask.states if state not in states]):
        raise PackageError(
            f"{package.uri}: reads the states {', '.join(fitted.ask.states)}, and {', '.join(missing)} is not among "
            f"those that are kept ({', '.join(states) or 'none'}); keep it, or use another package"
        )
    if state_size is not None and state_size != fitted.state_size:
        raise PackageError(
            f"{package.uri}: reads states of {fitted.state_size} numbers, and is given states of {state_size}; use it "
            "with the teacher that it was fitted for"
        )


def _shown(domain: DomainConfig) -> str:
    options = ", ".join(f"{key}: {value!r}" for key, value in sorted(domain.options.items()))
    return f"{domain.name} ({options})" if options else domain.name

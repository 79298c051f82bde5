"""Checks that a trust package may be used here: teacher (by the content of its weights), domain, states, verdict."""

from curation.config.endpoint import EndpointConfig, ServedConfig
from curation.config.filter import FilterTeacherConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.errors import PackageError
from curation.filter.package.description import STOP
from curation.filter.package.folder import TrustPackage
from curation.filter.package.questions import find_difference
from curation.models import resolve
from curation.refs import ModelRef
from curation.registry import BACKENDS
from curation.storage.digest import compute_model_digest
from curation.storage.paths import to_place

UNJUDGED = "no report of its run judged this trust function when it was exported, so nobody says whether to use it"


def check_fits(package: TrustPackage) -> None:
    """Refuse a package unless this version's domain asks and reads the stored questions as the package's run did.

    Raises:
        PackageError: something differs; the message has both sides.
        ConfigError: the domain cannot be made.
    """
    fitted = package.description
    domain = as_asked(get_domain(fitted.domain), fitted.decoding)
    if (different := find_difference(domain, fitted.questions)) is not None:
        options = ", ".join(f"{key}: {value!r}" for key, value in sorted(fitted.domain.options.items()))
        name = f"{fitted.domain.name} ({options})" if options else fitted.domain.name
        raise PackageError(
            f"{package.uri}: the domain {name} is another version than the package's: "
            f"{different}; trust was fitted on answers to the package's prompts: install the version that wrote it "
            f"({fitted.versions.get('trust-curation', 'unknown')}), or export a package of a new run"
        )


def compute_digests(model: ModelRef) -> dict[str, str]:
    """Return the digests of ``base`` and ``adapter`` if they are folders; hub ids are identified by their commit."""
    parts = {"base": model.base, "adapter": model.adapter}
    folders = {name: to_place(path) for name, path in parts.items() if path is not None}
    return {name: compute_model_digest(folder) for name, folder in folders.items() if folder.is_dir()}


def find_teacher(package: TrustPackage, given: ModelRef | str | None = None) -> ModelRef | None:
    """Return the package's teacher, checked, as it can be loaded here; ``None`` for a backend without weights.

    Args:
        package: a trust package.
        given: the current place of the teacher, if not the one that the package names; a path, URL or hub id means a
            model without an adapter.

    Raises:
        PackageError: the teacher is not at the place that the package names, or is another model.
        ModelError: ``given`` is no model.
    """
    fitted = package.description
    if given is None:
        if fitted.teacher is None:
            return None
        for part in fitted.teacher_digests:
            path = getattr(fitted.teacher, part)
            if not to_place(path).is_dir():
                raise PackageError(
                    f"{package.uri}: the {part} of its teacher is not at {path}; name the place where it is now (its "
                    "content is checked)"
                )
    model = resolve(given) if isinstance(given, str) else given or fitted.teacher
    assert model is not None, "either is given"
    check_teacher(package, model)
    return model


def check_teacher(package: TrustPackage, teacher: ModelRef) -> None:
    """Refuse another teacher than the package's.

    Raises:
        PackageError: the teacher is another; the message names both.
    """
    fitted = package.description
    if fitted.teacher is None:
        raise PackageError(
            f"{package.uri}: was fitted on labels of the backend {fitted.ask.backend}, which has no weights, and is "
            f"given the model {_format_model(teacher)}; use a package of that model"
        )
    found = compute_digests(teacher)
    if found.keys() != fitted.teacher_digests.keys() or (teacher.adapter is None) != (fitted.teacher.adapter is None):
        raise PackageError(
            f"{package.uri}: its teacher is {_format_model(fitted.teacher)}, and it is given "
            f"{_format_model(teacher)}: one is a hub id or has an adapter where the other has not; name the teacher "
            "in the same way"
        )
    for part, was in fitted.teacher_digests.items():
        if found[part] != was:
            raise PackageError(
                f"{package.uri}: the {part} of its teacher is {getattr(fitted.teacher, part)} with the digest {was}, "
                f"and it is given {getattr(teacher, part)} with the digest {found[part]}; give the teacher that it was "
                "fitted for"
            )
    mine, theirs = (fitted.teacher.base, fitted.teacher.revision), (teacher.base, teacher.revision)
    if "base" not in found and mine != theirs:
        raise PackageError(
            f"{package.uri}: its teacher is {_format_model(fitted.teacher)}, and it is given "
            f"{_format_model(teacher)}; give the teacher that it was fitted for"
        )


def check_runs(package: TrustPackage, runs: FilterTeacherConfig) -> None:
    """Refuse a configuration of the teacher that would change its answers.

    Raises:
        PackageError: the backend, scripted answers or served model differ from the package's; the message has both.
    """
    fitted = package.description.ask
    _check_served(package.uri, package.description.served, runs.endpoint)
    if (
        runs.backend is not None
        and runs.backend != fitted.backend
        and not (_has_weights(runs.backend) and _has_weights(fitted.backend))
    ):
        raise PackageError(
            f"{package.uri}: was fitted on answers of the backend {fitted.backend}, and teacher.backend is "
            f"{runs.backend}; only backends that load the same weights stand for each other"
        )
    if (scripted := runs.scripted) is not None:
        for name in ("completions", "state_size"):
            if (mine := getattr(scripted, name)) != (was := getattr(fitted.scripted, name)):
                raise PackageError(
                    f"{package.uri}: was fitted on a scripted teacher with {name} {was}, and teacher.scripted has "
                    f"{mine}; leave that key as the package has it"
                )


def _check_served(uri: str, was: ServedConfig | None, mine: EndpointConfig | None) -> None:
    """Refuse another served model than the package's; the user is free to choose its place and limits of its cost."""
    if was is None:
        if mine is not None:
            raise PackageError(f"{uri}: was fitted on answers of no server; leave teacher.endpoint out")
        return
    if mine is None:
        raise PackageError(
            f"{uri}: was fitted on answers of {was.model!r} on a server of kind {was.kind}; say where it is: "
            f"teacher.endpoint: {{url: ..., model: {was.model}, kind: {was.kind}}}"
        )
    for name in ServedConfig.model_fields:
        if (own := getattr(mine, name)) != (theirs := getattr(was, name)):
            raise PackageError(
                f"{uri}: was fitted on answers of a server with {name} {theirs!r}, and teacher.endpoint.{name} is "
                f"{own!r}; set it as the package has it"
            )


def _has_weights(backend: str) -> bool:
    """Return whether a backend is built in and loads a model's weights, so that a similar one can replace it."""
    return backend == "auto" or (backend in list(BACKENDS) and BACKENDS[backend].weights)


def _format_model(model: ModelRef) -> str:
    revision = "" if model.revision is None else f" at {model.revision}"
    return f"{model.base}{revision}" + (f" with the adapter {model.adapter}" if model.adapter else "")


def check_verdict(package: TrustPackage, *, anyway: bool = False) -> str | None:
    """Return a warning about the package's verdict or its absence, or ``None`` if the verdict permits use.

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

"""The teacher of a trust package: known by the content of its weights, wherever they are."""

from curation.config.endpoint import EndpointConfig, ServedConfig
from curation.config.filter import FilterTeacherConfig
from curation.errors import PackageError
from curation.filter.package.folder import TrustPackage
from curation.models import resolve
from curation.refs import ModelRef
from curation.registry import BACKENDS
from curation.storage.digest import model_digest
from curation.storage.paths import place


def digests_of(model: ModelRef) -> dict[str, str]:
    """``model_digest`` of ``base`` and ``adapter``, of those that are folders; a hub id is known by its commit."""
    parts = {"base": model.base, "adapter": model.adapter}
    folders = {name: place(path) for name, path in parts.items() if path is not None}
    return {name: model_digest(folder) for name, folder in folders.items() if folder.is_dir()}


def teacher_of(package: TrustPackage, given: ModelRef | str | None = None) -> ModelRef | None:
    """The package's teacher, checked, as it can be loaded here; ``None`` for a backend without weights.

    Args:
        package: a trust package.
        given: where the teacher is now, if not where the package says; a path, URL or hub id stands for a model without
            an adapter.

    Raises:
        PackageError: it is not where the package says, or is not that model.
        ModelError: ``given`` is no model.
    """
    fitted = package.description
    if given is None:
        if fitted.teacher is None:
            return None
        for part in fitted.teacher_digests:
            path = getattr(fitted.teacher, part)
            if not place(path).is_dir():
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
        PackageError: with both.
    """
    fitted = package.description
    if fitted.teacher is None:
        raise PackageError(
            f"{package.uri}: was fitted on labels of the backend {fitted.ask.backend}, which has no weights, and is "
            f"given the model {_named(teacher)}; use a package of that model"
        )
    found = digests_of(teacher)
    if found.keys() != fitted.teacher_digests.keys() or (teacher.adapter is None) != (fitted.teacher.adapter is None):
        raise PackageError(
            f"{package.uri}: its teacher is {_named(fitted.teacher)}, and it is given {_named(teacher)}: one is a hub "
            "id or has an adapter where the other has not; name the teacher in the same way"
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
            f"{package.uri}: its teacher is {_named(fitted.teacher)}, and it is given {_named(teacher)}; give the "
            "teacher that it was fitted for"
        )


def check_runs(package: TrustPackage, runs: FilterTeacherConfig) -> None:
    """Refuse a teacher that is to run in a way that other answers would come of.

    Raises:
        PackageError: backend, scripted answers or the served model are not those of the package; the message has both.
    """
    fitted = package.description.ask
    _check_served(package.uri, package.description.served, runs.endpoint)
    if (
        runs.backend is not None
        and runs.backend != fitted.backend
        and not (_weighs(runs.backend) and _weighs(fitted.backend))
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
    """Refuse another served model than the package's; where it is and what it costs is the user's alone."""
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


def _weighs(backend: str) -> bool:
    """Whether a backend is one of ours that load a model's weights, so that another one can take its place."""
    return backend == "auto" or (backend in list(BACKENDS) and BACKENDS[backend].weights)


def _named(model: ModelRef) -> str:
    revision = "" if model.revision is None else f" at {model.revision}"
    return f"{model.base}{revision}" + (f" with the adapter {model.adapter}" if model.adapter else "")

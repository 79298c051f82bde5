"""Checks that a trust package may be used here: verdict, teacher (by the content of its weights), domain, content."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from curation.config.external import ServedConfig
from curation.config.filter import FilterTeacherConfig
from curation.domains import Domain, Example, attempt, get_domain
from curation.domains.given import as_asked
from curation.errors import ConfigError, PackageError
from curation.filter.package.description import STOP, Question
from curation.filter.package.folder import TrustPackage
from curation.label_columns import is_from_domain
from curation.models import pin_model, resolve
from curation.refs import ModelRef, TrustRef
from curation.registry import BACKENDS
from curation.storage.digest import compute_model_digest
from curation.storage.paths import to_place
from curation.tables import schemas
from curation.trust import load_fitted

UNJUDGED = "no report of its run judged this trust function when it was exported, so nobody says whether to use it"
NUM_QUESTIONS = 5
SHOWN = 60
"""Maximum number of characters of a text that a message shows, from a little before the first difference."""
NUM_ROWS = 4


def check_package(
    package: TrustPackage, runs: FilterTeacherConfig, given: ModelRef | str | None = None, *, anyway: bool = False
) -> tuple[ModelRef | None, str | None]:
    """Return a package's teacher as it can be loaded here, and a warning about its verdict; refuse what does not fit.

    ``runs`` and ``given`` say how and where the teacher runs here (:func:`find_teacher`).

    Raises:
        PackageError: the verdict is "do not use" and not ``anyway``, or teacher, backend or domain are not its own.
        ModelError: ``given`` is no model.
    """
    found, warning = package.description.verdict, None
    if found is None:
        warning = f"{package.uri}: {UNJUDGED}; export it again when `curate report` has made one"
    elif found.level == STOP:
        warning = f"{package.uri}: the verdict of its run {package.description.made.run!r}: {found.sentence}"
        if not anyway:
            raise PackageError(
                f"{warning} Nothing is labelled by it; mend the run ({found.next}) and export it again, or use it all "
                "the same by --anyway (anyway: true in a configuration, Filter.load(..., anyway=True))"
            )
    check_runs(package, runs)
    if runs.model is not None:
        if runs.model.path is None:
            raise ConfigError("teacher.model: a model from scratch cannot be a package's teacher; give its path")
        if package.description.teacher is None:
            check_teacher(package, ModelRef(base=runs.model.path))
        given = pin_model(runs.model)
    check_fits(package)
    return find_teacher(package, given), warning


def check_runs(package: TrustPackage, runs: FilterTeacherConfig) -> None:
    """Refuse a backend or a served model that would change the teacher's answers."""
    if (problem := next(_find_other_answers(package, runs), None)) is not None:
        raise PackageError(f"{package.uri}: was fitted on {problem}")


def _find_other_answers(package: TrustPackage, runs: FilterTeacherConfig) -> Iterator[str]:
    """Yield how answers here would differ from those that the package was fitted on."""
    fitted, served, mine = package.description.ask, package.description.served, runs.endpoint
    if served is None and mine is not None:
        yield "answers of no server; leave teacher.endpoint out"
    if served is not None and mine is None:
        yield (
            f"answers of {served.model!r} on a server of kind {served.kind}; say where it is: teacher.endpoint: "
            f"{{url: ..., model: {served.model}, kind: {served.kind}}}"
        )
    for name in ServedConfig.model_fields if served is not None and mine is not None else ():
        if (own := getattr(mine, name)) != (theirs := getattr(served, name)):
            yield (
                f"answers of a server with {name} {theirs!r}, and teacher.endpoint.{name} is {own!r}; set it as the "
                "package has it"
            )
    backends = {runs.backend or fitted.backend, fitted.backend}
    loads_weights = all(name in list(BACKENDS) and BACKENDS[name].weights for name in backends)
    if len(backends) > 1 and not loads_weights:
        yield (
            f"answers of the backend {fitted.backend}, and teacher.backend is {runs.backend}; only backends that load "
            "the same weights stand for each other"
        )


def find_teacher(package: TrustPackage, given: ModelRef | str | None = None) -> ModelRef | None:
    """Return the package's teacher, checked, as it can be loaded here; ``None`` for a backend without weights.

    ``given`` is its place if it moved; a path, URL or hub id means a model without an adapter.

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
    """Refuse another teacher, by a ``PackageError``: folders by their content's digest, hub models by id and commit."""
    fitted, known = package.description.teacher, package.description.teacher_digests
    if fitted is None:
        raise PackageError(
            f"{package.uri}: was fitted on labels of the backend {package.description.ask.backend}, which has no "
            f"weights, and is given the model {_format_model(teacher, {})}; use a package of that model"
        )
    found = compute_digests(teacher)
    was, now = (
        (digests.get("base", (model.base, model.revision)), digests.get("adapter", model.adapter))
        for model, digests in ((fitted, known), (teacher, found))
    )
    if was != now:
        raise PackageError(
            f"{package.uri}: its teacher is {_format_model(fitted, known)}, and it is given "
            f"{_format_model(teacher, found)}; give the teacher that it was fitted for"
        )


def compute_digests(model: ModelRef) -> dict[str, str]:
    """Return the digests of ``base`` and ``adapter`` if they are folders; hub ids are identified by their commit."""
    parts = {"base": model.base, "adapter": model.adapter}
    folders = {name: to_place(path) for name, path in parts.items() if path is not None}
    return {name: compute_model_digest(folder) for name, folder in folders.items() if folder.is_dir()}


def _format_model(model: ModelRef, digests: Mapping[str, str]) -> str:
    digest = {name: f" with the digest {value}" for name, value in digests.items()}
    version = digest.get("base", "" if model.revision is None else f" at {model.revision}")
    adapter = "" if model.adapter is None else f" with the adapter {model.adapter}{digest.get('adapter', '')}"
    return f"{model.base}{version}{adapter}"


def collect_questions(domain: Domain, rows: Iterable[tuple[Example, str, str | None]]) -> tuple[Question, ...]:
    """Return the first ``NUM_QUESTIONS`` rows (example, completion, parsed label) that can be written as JSON."""
    found: list[Question] = []
    for example, completion, label in rows:
        own = {name: example[name] for name in domain.columns.names}
        prompt, problem = attempt(domain.prompt, own)
        options, further = attempt(domain.options, own)
        try:
            is_json = json.loads(json.dumps(own, allow_nan=False)) == own
        except (TypeError, ValueError):
            is_json = False
        if problem or further or prompt is None or not is_json:
            continue
        found.append(Question(example=own, prompt=prompt, options=options, completion=completion, label=label))
        if len(found) == NUM_QUESTIONS:
            break
    return tuple(found)


def check_fits(package: TrustPackage) -> None:
    """Refuse a package unless this version's domain asks and reads the stored questions as the package's run did."""
    fitted = package.description
    domain = as_asked(get_domain(fitted.domain), fitted.decoding)
    for number, question in enumerate(fitted.questions):
        now: dict[str, tuple[Any, str]] = {
            "prompt": attempt(domain.prompt, question.example),
            "options": attempt(domain.options, question.example),
            "label": attempt(domain.parse, question.completion, question.example),
        }
        for what, (value, problem) in now.items():
            was = getattr(question, what)
            value = tuple(value) if isinstance(value, list) else value
            if not problem and value == was:
                continue
            options = ", ".join(f"{key}: {value!r}" for key, value in sorted(fitted.domain.options.items()))
            name = f"{fitted.domain.name} ({options})" if options else fitted.domain.name
            version = fitted.versions.get("trust-curation", "unknown")
            here, there = _show_difference(problem or value, was)
            raise PackageError(
                f"{package.uri}: the domain {name} is another version than the package's: {what} of stored question "
                f"{number} is {here!r} here, and {there!r} in the package; trust was fitted on answers to the "
                f"package's prompts: install the version that wrote it ({version}), or export a package of a new run"
            )


def _show_difference(*values: object) -> tuple[str, str]:
    """Return two values as texts, from a little before their first difference."""
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str) for value in values
    ]
    pairs = enumerate(zip(*texts, strict=False))
    start = max(0, next((place for place, (a, b) in pairs if a != b), min(map(len, texts))) - SHOWN // 3)
    one, other = (("..." if start else "") + text[start : start + SHOWN] for text in texts)
    return one, other


def check_content(package: TrustPackage) -> None:
    """Refuse a package whose rows cannot be read, or whose trust functions cannot score rows of its teacher.

    If weights had other shapes than the description says, or were NaN, no row could be selected after hours of
    labelling. Digests do not detect that, so the functions score a few rows of noise first.
    """
    described = package.description
    if described.calibration is not None:
        package.calibration()
    for part in described.parts.values():
        part.check(package)
    if described.sample.num_texts:
        package.words()
    further = [state for part in described.parts.values() for state in part.inputs]
    for state, states_ND in package.reference(further).items():
        if states_ND.shape[1:] != (described.state_size,) or not np.isfinite(states_ND).all():
            raise PackageError(
                f"{package.uri}: the sample of the state {state} has the shape {states_ND.shape} or holds a value that "
                f"is no number, and a state has {described.state_size} numbers; copy or export the package again"
            )
    _check_scores(package, package.trust, described.ask.states)
    for name, part in described.parts.items():
        _check_scores(package, package.functions[name], part.inputs)


def _check_scores(package: TrustPackage, ref: TrustRef, states: Sequence[str]) -> None:
    """Refuse a trust function that cannot score rows with the columns of the teacher's labels."""
    described, name = package.description, ref.uri.rsplit("/", 1)[-1]
    try:
        function = load_fitted(ref)
        added = [pa.field(name, schemas.GIVEN_TYPE) for name in function.features if is_from_domain(name)]
        ask = described.ask
        schema = schemas.make_labels_schema(states, ask.state_dtype, described.state_size, ask.token_logprobs, added)
        rng, columns = np.random.default_rng(0), []
        for field in schema:  # states are normal, numbers are 1
            if pa.types.is_fixed_size_list(field.type):
                numbers = rng.normal(size=NUM_ROWS * field.type.list_size)
                values = pa.array(numbers.astype(field.type.value_type.to_pandas_dtype()))
                columns.append(pa.FixedSizeListArray.from_arrays(values, field.type.list_size))
            elif field.name == schemas.ROW_ID.name:
                columns.append(pa.array(range(NUM_ROWS), field.type))
            elif field.name == schemas.ERROR.name or not pa.types.is_primitive(field.type):
                columns.append(pa.nulls(NUM_ROWS, field.type))
            else:
                columns.append(pa.array([1] * NUM_ROWS).cast(field.type))
        raw_N = function.raw_score(pa.RecordBatch.from_arrays(columns, schema=schema))
        if raw_N.shape != (NUM_ROWS,) or not np.isfinite(raw_N).all():
            raise ValueError(
                f"{NUM_ROWS} rows of plain numbers score {raw_N.tolist()}, so it holds a value that is no number"
            )
    except Exception as error:  # what is examined may be broken in any way
        raise PackageError(
            f"{package.uri}: its trust function {name} cannot score rows of its teacher ({error}); copy or export the "
            "package again"
        ) from error

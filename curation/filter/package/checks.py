"""Checks that a trust package may be used here: teacher (by the content of its weights), domain, states, verdict."""

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from curation.config.endpoint import EndpointConfig, ServedConfig
from curation.config.filter import FilterTeacherConfig
from curation.domains import Domain, Example, attempt, get_domain
from curation.domains.given import as_asked
from curation.errors import PackageError
from curation.filter.package.description import STOP, Question
from curation.filter.package.folder import TrustPackage
from curation.json_types import JsonView
from curation.label_columns import is_from_domain
from curation.models import resolve
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


def check_fits(package: TrustPackage) -> None:
    """Refuse a package unless this version's domain asks and reads the stored questions as the package's run did."""
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
    """Refuse another teacher than the package's, by a ``PackageError`` that names both."""
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
    """Refuse a backend, scripted answers or a served model that would change the teacher's answers."""
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
    """Return a warning about the package's verdict or its absence, or None; refuse "do not use" unless ``anyway``."""
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


def find_difference(domain: Domain, questions: Iterable[Question]) -> str | None:
    """Return how this version of a domain differs on a stored question, in words, or ``None`` if nothing differs."""
    for number, question in enumerate(questions):
        now: JsonView = {
            "prompt": attempt(domain.prompt, question.example),
            "options": attempt(domain.options, question.example),
            "label": attempt(domain.parse, question.completion, question.example),
        }
        for what, (value, problem) in now.items():
            was = getattr(question, what)
            value = tuple(value) if isinstance(value, list) else value
            if problem or value != was:
                texts = [
                    text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
                    for text in (problem or value, was)
                ]
                pairs = enumerate(zip(*texts, strict=False))
                start = max(0, next((i for i, (a, b) in pairs if a != b), min(map(len, texts))) - SHOWN // 3)
                here, there = (("..." if start else "") + text[start : start + SHOWN] for text in texts)
                return f"{what} of stored question {number} is {here!r} here, and {there!r} in the package"
    return None


def check_content(package: TrustPackage) -> None:
    """Refuse a package whose rows cannot be read, or whose trust functions cannot score rows of its teacher.

    If weights had other shapes than the description says, or were NaN, no row could be selected after hours of
    labelling. Digests say nothing about what files contain, so the functions score a few rows of noise before.
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
                f"{package.uri}: the sample of the state {state} has the shape {states_ND.shape} or holds what is no "
                f"number, and a state has {described.state_size} numbers; copy or export the package again"
            )
    _check_scores(package, package.trust, described.ask.states)
    for name, part in described.parts.items():
        _check_scores(package, package.functions[name], part.inputs)


def _check_scores(package: TrustPackage, ref: TrustRef, states: Sequence[str]) -> None:
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
    except Exception as error:  # what is examined may be broken in any way
        raise PackageError(
            f"{package.uri}: its trust function {name} cannot score rows of its teacher ({error}); copy or export the "
            "package again"
        ) from error
    if raw_N.shape != (NUM_ROWS,) or not np.isfinite(raw_N).all():
        raise PackageError(
            f"{package.uri}: its trust function {name} scores {NUM_ROWS} rows of plain numbers as {raw_N.tolist()}, so "
            "it holds what is no number, and no row could be ranked by it; copy or export the package again"
        )

"""The folder of a trust package: writing, and reading with checks that it is complete and unchanged."""

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix

from curation.arrays import Float32s
from curation.config.base import Section
from curation.errors import ModelError, PackageError, RunDirError
from curation.filter.package.description import PARTS, Description, refuse_code, refuse_maker
from curation.filter.parts import PartFiles
from curation.metrics.shift import NUM_HASHES, Words
from curation.refs import TrustRef, fingerprint
from curation.selection.budget import GradedScores
from curation.storage.cache import fetch_folder, staged
from curation.storage.digest import compute_sha256
from curation.storage.json_files import read_json
from curation.storage.paths import Place, Remote, list_files, to_place
from curation.trust import saved

WORDS = ("word_starts", "word_hashes", "word_counts")
"""Names of the arrays of hashed words: each text's start, int32 [N + 1]; the hashes, uint16; their counts, int16."""
_DTYPES = (np.int32, np.uint16, np.int16)
MAX_ROWS = 10_000_000
"""Maximum number of rows of a package's table."""
CALIBRATED = pa.schema([("raw", pa.float32()), ("trust", pa.float32()), ("correct", pa.bool_())])
FORMAT = 2
PACKAGE, CARD = "package.json", "README.md"
CALIBRATION, SHIFT, TRUST = "calibration.parquet", "shift.safetensors", "trust"
SCORES = ("raw", "trust")
"""Names of the rows' held-out scores in ``shift.safetensors``."""
UNREAD = (CARD, ".gitattributes")
"""Files for people and registries, which may change, since no code reads them."""
Arrays = Mapping[str, npt.NDArray[Any]]


def read_rows(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file, at most ``MAX_ROWS``, since few compressed bytes may expand beyond the memory."""
    if (num_rows := pq.read_metadata(path).num_rows) > MAX_ROWS:
        raise ValueError(f"it holds {num_rows:,} rows, and {MAX_ROWS:,} are the most that are read")
    return pq.read_table(path, schema=schema)


def to_floats(column: pa.Array | pa.ChunkedArray) -> Float32s:
    """Return a column as float32 [N], NaN for null."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float32)


def to_graded(table: pa.Table) -> GradedScores:
    """Return calibration rows; a label that could not be read has NaN scores and is never selected."""
    correct_M = table["correct"].to_numpy().astype(np.bool_)
    return GradedScores(to_floats(table["raw"]), to_floats(table["trust"]), correct_M)


def pack_words(words_NW: Words) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of hashed words by the names in ``WORDS``; empty without texts."""
    if not words_NW.shape[0]:
        return {}
    parts = zip(WORDS, (words_NW.indptr, words_NW.indices, words_NW.data), _DTYPES, strict=True)
    return {name: part.astype(dtype) for name, part, dtype in parts}


class _File(Section):
    bytes: int
    sha256: str


class _Content(Section):
    """The content of ``package.json``."""

    format: int
    digest: str
    files: dict[str, _File]
    """All files except ``package.json`` and ``UNREAD``."""
    description: Description


@dataclass(frozen=True, kw_only=True)
class TrustPackage:
    """A trust package that was read and checked to be complete."""

    uri: str
    digest: str
    """Digest of the content: equal for copies, and for two exports of the same fit and calibration."""
    description: Description
    trust: TrustRef
    functions: Mapping[str, TrustRef] = field(default_factory=dict)
    allow_code: tuple[str, ...] = ()
    """Code that the package was allowed to name (:func:`load`)."""

    def at(self, folder: Place) -> "TrustPackage":
        """Return the package with the addresses of its copy in a folder, which need not exist yet."""
        functions = {name: replace(ref, uri=str(folder / name)) for name, ref in self.functions.items()}
        return replace(self, uri=str(folder), trust=replace(self.trust, uri=str(folder / TRUST)), functions=functions)

    def calibration(self) -> GradedScores:
        """Return the calibration rows (:func:`to_graded`); a ``PackageError`` if there are none."""
        if self.description.calibration is None:
            raise PackageError(
                f"{self.uri}: holds no calibration rows (its run had no splits.calibration with a risk budget, and its "
                "trust function no held-out scores), so no cut can be certified by it; give fresh graded rows, or cut "
                "by n, share or threshold"
            )
        with self.reading(CALIBRATION) as path:
            return to_graded(read_rows(path, CALIBRATED))

    def reference(self, further: Sequence[str] = ()) -> dict[str, npt.NDArray[np.floating[Any]]]:
        """Return states of sampled labelled rows, [N, D] by name, ``further`` ones too; empty if trust reads none."""
        states = self.description.sample.states
        if not states:
            return {}
        with self.reading(SHIFT) as path:
            arrays = load_file(path)
            return {state: arrays[state] for state in dict.fromkeys([*states, *further])}

    def words(self) -> Words:
        """Return the hashed words of ``description.sample.num_texts`` questions of labelled rows."""
        with self.reading(SHIFT) as path:
            arrays = load_file(path)
            starts, hashes, counts = (arrays[name] for name in WORDS)
            dtypes = [array.dtype for array in (starts, hashes, counts)]
            if dtypes != list(map(np.dtype, _DTYPES)):
                raise ValueError(f"{', '.join(WORDS)} are of {', '.join(map(str, dtypes))}")
            shape = (self.description.sample.num_texts, NUM_HASHES)
            words_NW = csr_matrix((counts, hashes.astype(np.int32), starts), shape=shape)
            words_NW.check_format(full_check=True)
            return words_NW

    def reference_score(self, name: str) -> Float32s | None:
        """Return the ``raw`` or ``trust`` scores of :meth:`reference`, float32 [N], NaN for rows without; or None."""
        sample = self.description.sample
        if not sample.states:
            return None
        with self.reading(SHIFT) as path:
            score_N = load_file(path).get(name)
            if score_N is not None and score_N.shape != (sample.num_rows,):
                raise ValueError(f"{name} has the shape {score_N.shape}, not one score a row")
            return None if score_N is None else score_N.astype(np.float32)

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """Yield the path of a file; turn errors of reading it, within the context, into a ``PackageError``."""
        try:
            yield fetch_folder(self.uri) / name
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise PackageError(
                f"{self.uri}: {name} is not what {PACKAGE} tells ({error}); copy or export the package again"
            ) from error


def write(
    folder: Path,
    description: Description,
    *,
    trust: TrustRef,
    calibration: GradedScores | None,
    reference: Arrays,
    parts: Mapping[str, PartFiles] = {},
    card: str | None = None,
) -> TrustPackage:
    """Write a package into an empty or missing local folder, and read it back; the trust function is copied.

    ``calibration``, ``reference`` and ``parts`` are what the description names. ``reference`` has states, [N, D] by
    state, and their rows' held-out scores [N] by ``SCORES``, if they have any; without states the hashed ``WORDS``.
    ``card`` is the text of ``README.md``.

    Raises:
        ModelError: the trust function is missing, or changed since it was pinned.
    """
    for name, ref in {TRUST: trust, **{name: part.trust for name, part in parts.items()}}.items():
        if saved.pin(to_place(ref.uri)).digest != ref.digest:
            raise ModelError(f"{ref.uri}: changed since digest {ref.digest} was taken; fit it again")
        (folder / name).mkdir(parents=True)
        for file in (saved.WEIGHTS, saved.DESCRIPTION):
            shutil.copyfile(fetch_folder(ref.uri) / file, folder / name / file)
    for part in parts.values():
        part.write(folder)
    if calibration is not None:
        scores = [pa.array(scores_M, pa.float32(), from_pandas=True) for scores_M in calibration[:2]]
        rows = pa.table([*scores, pa.array(calibration.correct_M)], schema=CALIBRATED)
        pq.write_table(rows, folder / CALIBRATION)
    if reference:
        save_file({name: np.ascontiguousarray(states_ND) for name, states_ND in reference.items()}, folder / SHIFT)
    files = {file.path: _read_facts(folder / file.path) for file in list_files(folder)}
    content = _Content(format=FORMAT, digest=_digest(description, files), files=files, description=description)
    text = json.dumps(content.model_dump(mode="json"), indent=1, allow_nan=False)
    (folder / PACKAGE).write_text(text + "\n")
    if card is not None:
        (folder / CARD).write_text(card)
    return _load(str(folder), None)


def load(uri: str | Place, *, allow_code: Collection[str] = ()) -> TrustPackage:
    """Read a package from a folder or a URL of an object store, and check every file.

    ``allow_code`` is code that it may name besides registered parts, each ``module:NAME`` as the package has it.

    Raises:
        PackageError: the package is missing, incomplete, changed or of another format, has a file that no package has,
            or names other code.
    """
    return _load(uri, tuple(allow_code))


def copy_package(package: TrustPackage, to: Place) -> TrustPackage:
    """Copy a package to a place that every node can read, and return the copy."""
    with staged(to) as local:
        shutil.copytree(fetch_folder(package.uri), local, dirs_exist_ok=True)
    return load(to, allow_code=package.allow_code)


def _load(uri: str | Place, allow_code: tuple[str, ...] | None) -> TrustPackage:
    """Return the package as :func:`load` does; ``allow_code`` None, for packages made here, allows all code."""
    try:
        folder = to_place(uri)
        if not (folder / PACKAGE).is_file():
            raise PackageError(
                f"{uri}: is not a trust package (it has no {PACKAGE}); give a folder or URL that `curate export-trust` "
                "wrote"
            )
        _refuse_others(folder)
        local = fetch_folder(str(folder))
        content = _read_content(local / PACKAGE, str(uri), allow_code)
        _check_files(local, content, str(uri))
        if (digest := _digest(content.description, content.files)) != content.digest:
            raise PackageError(
                f"{uri}: {PACKAGE} has the digest {digest}, and it names {content.digest}: its description was "
                "changed after the export; copy or export the package again"
            )
        trust = saved.pin(folder / TRUST)
        functions = {name: saved.pin(folder / name) for name in content.description.parts}
        for ref in (trust, *functions.values()) if allow_code is not None else ():
            refuse_maker(str(uri), saved.read_description(ref).get("made_by"), allow_code or ())
    except (RunDirError, ModelError) as error:
        raise PackageError(str(error)) from error
    except OSError as error:
        raise PackageError(f"{uri}: cannot be read ({error})") from error
    return TrustPackage(
        uri=str(folder.absolute()),
        digest=digest,
        description=content.description,
        trust=trust,
        functions=functions,
        allow_code=allow_code or (),
    )


def _refuse_others(folder: Place) -> None:
    """Refuse files that no package has, links and devices, before any is read or downloaded."""
    known = {PACKAGE, CALIBRATION, SHIFT, *_list_needed(PARTS), *UNREAD}
    if isinstance(folder, Remote):
        kinds = {file.path: True for file in folder.entries()}
    else:
        there = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
        files = {name: path for name, path in there.items() if path.is_symlink() or not path.is_dir()}
        kinds = {name: path.is_file() and not path.is_symlink() for name, path in files.items()}
    if others := sorted(kinds.keys() - known):
        raise PackageError(
            f"{folder}: holds {', '.join(others[:5])}, which no trust package has (only {', '.join(sorted(known))}); "
            "nothing was read; if the package is trusted, remove it and load again"
        )
    if odd := [name for name, is_file in kinds.items() if not is_file]:
        raise PackageError(
            f"{folder}: {odd[0]} is a link or a device, and what a package holds are files; nothing was read; if the "
            "package is trusted, copy it with its links followed (cp -rL)"
        )


def _read_content(path: Path, uri: str, allow_code: Collection[str] | None) -> _Content:
    """Return the content of ``package.json``, which must have this version's format."""
    try:
        raw = read_json(path)
        found = raw["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{uri}: {PACKAGE} is truncated, or no package's ({error}); copy it again") from error
    if found != FORMAT:
        raise PackageError(
            f"{uri}: has the format {found!r}, and this version reads format {FORMAT}; install the version of "
            "trust-curation that wrote it, or export it again"
        )
    if allow_code is not None:
        refuse_code(uri, raw.get("description"), allow_code)
    try:
        return _Content.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise PackageError(
            f"{uri}: {PACKAGE}: {'.'.join(map(str, first['loc']))}: {first['msg']} ({error.error_count()} such "
            "problems): it was changed, or written by another version; copy the package, or export it again"
        ) from error


def _check_files(folder: Path, content: _Content, uri: str) -> None:
    files = content.files
    if missing := sorted(_list_needed(content.description.parts) - files.keys()):
        raise PackageError(f"{uri}: {PACKAGE} names no {', '.join(missing)}; copy or export the package again")
    there = {file.path for file in list_files(folder)} - {PACKAGE, *UNREAD}
    if unnamed := sorted(there - files.keys()):
        raise PackageError(f"{uri}: {', '.join(unnamed)} is not named in {PACKAGE}; copy or export the package again")
    for name, recorded in files.items():
        if name not in there:
            raise PackageError(f"{uri}: {name} is missing; copy the package again")
        if (found := _read_facts(folder / name)) != recorded:
            raise PackageError(
                f"{uri}: {name} has {found.bytes:,} bytes with the digest {found.sha256[:16]}, and {PACKAGE} names "
                f"{recorded.bytes:,} with {recorded.sha256[:16]}: it was truncated or changed; copy the package again"
            )


def _list_needed(parts: Iterable[str]) -> set[str]:
    """Return the files that a package with these parts must have."""
    functions = {f"{folder}/{file}" for folder in (TRUST, *parts) for file in (saved.WEIGHTS, saved.DESCRIPTION)}
    return functions.union(*(PARTS[name].FILES for name in parts))


def _digest(description: Description, files: Mapping[str, _File]) -> str:
    recorded = {name: file.model_dump() for name, file in files.items()}
    return fingerprint({"format": FORMAT, "description": description.content, "files": recorded})


def _read_facts(path: Path) -> _File:
    return _File(bytes=path.stat().st_size, sha256=compute_sha256(path))

"""The folder of a trust package: written whole, and read only if it is what was written."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from curation.config.base import Section
from curation.errors import ModelError, PackageError, RunDirError
from curation.package.description import Description
from curation.refs import TrustRef, fingerprint
from curation.selection.budget import Graded
from curation.storage.cache import fetched
from curation.storage.digest import file_sha256
from curation.storage.paths import Place, Remote, place
from curation.trust import saved

FORMAT = 1
PACKAGE, CARD = "package.json", "README.md"
CALIBRATION, SHIFT = "calibration.parquet", "shift.safetensors"
TRUST = "trust"
NEEDED = (f"{TRUST}/{saved.WEIGHTS}", f"{TRUST}/{saved.DESCRIPTION}")
UNREAD = (CARD, ".gitattributes")
"""Files for people and registries, which may change: nothing reads them."""
CALIBRATED = pa.schema([("raw", pa.float32()), ("trust", pa.float32()), ("correct", pa.bool_())])

Arrays = Mapping[str, npt.NDArray[np.floating[Any]]]


class _File(Section):
    bytes: int
    sha256: str


class _Content(Section):
    """``package.json``."""

    format: int
    digest: str
    """See ``TrustPackage.digest``."""
    files: dict[str, _File]
    """All but this file and those that nobody reads."""
    description: Description


@dataclass(frozen=True, kw_only=True)
class TrustPackage:
    """A trust package that was read and found whole."""

    uri: str
    """Where it was read from, absolute."""
    digest: str
    """Of its content: equal for copies, and for two exports of the same fit and calibration."""
    description: Description
    trust: TrustRef
    """The fitted trust function (``curation.trust.load_fitted``)."""

    def calibration(self) -> Graded:
        """The calibration rows; NaN scores for those whose label could not be read, which are never selected.

        Raises:
            PackageError: the package has none, or the file holds something else.
        """
        if self.description.calibration is None:
            raise PackageError(
                f"{self.uri}: holds no calibration rows (its run had neither splits.calibration with a risk budget nor "
                "trust.calibration_fraction), so no cut can be certified by it; give fresh graded rows, or cut by n, "
                "share or threshold"
            )
        try:
            table = pq.read_table(fetched(self.uri) / CALIBRATION, schema=CALIBRATED)
            raw_M, trust_M = (_floats(table[name]) for name in ("raw", "trust"))
            return Graded(raw_M, trust_M, table["correct"].to_numpy().astype(np.bool_))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._odd(CALIBRATION, error) from error

    def reference(self) -> dict[str, npt.NDArray[np.floating[Any]]]:
        """The teacher's hidden states of a sample of labelled rows, [N, D] by state; empty if trust reads none.

        Raises:
            PackageError: the file holds something else.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        if not self.description.sample.states:
            return {}
        try:
            arrays = load_file(fetched(self.uri) / SHIFT)
            return {state: arrays[state] for state in self.description.sample.states}
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise self._odd(SHIFT, error) from error

    def _odd(self, name: str, error: Exception) -> PackageError:
        return PackageError(
            f"{self.uri}: {name} is not what {PACKAGE} tells ({error}); copy or export the package again"
        )


def write(
    folder: Path,
    description: Description,
    *,
    trust: TrustRef,
    calibration: Graded | None,
    reference: Arrays,
    card: str | None = None,
) -> TrustPackage:
    """Write a package into an empty or missing local folder, and read it back.

    Args:
        folder: where to write.
        description: what it says of itself.
        trust: the fitted trust function, which is copied.
        calibration: the rows that ``description.calibration`` tells of.
        reference: the states that ``description.sample`` tells of, [N, D] by state.
        card: the text of its ``README.md``.

    Raises:
        PackageError: the parts do not agree with the description.
        ModelError: the trust function is gone or changed since it was pinned.
    """
    from safetensors.numpy import save_file

    if (calibration is None) != (description.calibration is None) or set(reference) != set(description.sample.states):
        raise PackageError(f"{folder}: calibration rows and reference states are not those that its description names")
    if saved.pin(place(trust.uri), TrustRef).digest != trust.digest:
        raise ModelError(f"{trust.uri}: changed since digest {trust.digest} was taken; fit it again")
    source = fetched(trust.uri)
    (folder / TRUST).mkdir(parents=True)
    for name in (saved.WEIGHTS, saved.DESCRIPTION):
        shutil.copyfile(source / name, folder / TRUST / name)
    if calibration is not None:
        columns = [
            *(pa.array(scores_M, pa.float32(), from_pandas=True) for scores_M in calibration[:2]),
            pa.array(calibration.correct_M),
        ]
        pq.write_table(pa.table(columns, schema=CALIBRATED), folder / CALIBRATION)
    if reference:
        save_file({name: np.ascontiguousarray(states_ND) for name, states_ND in reference.items()}, folder / SHIFT)
    files = {name: _facts(folder / name) for name in sorted(_local_names(folder))}
    content = _Content(format=FORMAT, digest=_digest(description, files), files=files, description=description)
    text = json.dumps(content.model_dump(mode="json"), indent=1, allow_nan=False)
    (folder / PACKAGE).write_text(text + "\n")
    if card is not None:
        (folder / CARD).write_text(card)
    return load(str(folder))


def load(uri: str | Place) -> TrustPackage:
    """Read a package, local or in an object store, and check every file.

    Raises:
        PackageError: it is not there, of another format, incomplete, changed, or holds a file that no package has.
    """
    try:
        folder = place(uri)
        if not (folder / PACKAGE).is_file():
            raise PackageError(
                f"{uri}: is no trust package (there is no {PACKAGE}); give a folder or URL that `curate "
                "export-trust` wrote"
            )
        _refuse_others(folder)
        local = fetched(str(folder))
        content = _content(local / PACKAGE, str(uri))
        _check_files(local, content.files, str(uri))
        if (digest := _digest(content.description, content.files)) != content.digest:
            raise PackageError(
                f"{uri}: {PACKAGE} has the digest {digest}, and it names {content.digest}: its description was "
                "changed after the export; copy or export the package again"
            )
        trust = saved.pin(folder / TRUST, TrustRef)
    except RunDirError as error:
        raise PackageError(str(error)) from error
    except OSError as error:
        raise PackageError(f"{uri}: cannot be read ({error})") from error
    return TrustPackage(uri=str(folder.absolute()), digest=digest, description=content.description, trust=trust)


def _refuse_others(folder: Place) -> None:
    """Refuse files that no package has, before any is read or downloaded."""
    known = {PACKAGE, CALIBRATION, SHIFT, *NEEDED, *UNREAD}
    names = [entry.path for entry in folder.entries()] if isinstance(folder, Remote) else _local_names(folder)
    if others := sorted(set(names) - known):
        raise PackageError(
            f"{folder}: holds {', '.join(others[:5])}, which no trust package has (only {', '.join(sorted(known))}); "
            "nothing was read; if the package is trusted, remove it and load again"
        )


def _content(path: Path, uri: str) -> _Content:
    """The content of ``package.json``, of this version's format."""
    try:
        raw = json.loads(path.read_text())
        found = raw["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{uri}: {PACKAGE} is truncated, or no package's ({error}); copy it again") from error
    if found != FORMAT:
        raise PackageError(
            f"{uri}: has the format {found!r}, and this version reads format {FORMAT}; install the version of "
            "trust-curation that wrote it, or export it again"
        )
    try:
        return _Content.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise PackageError(
            f"{uri}: {PACKAGE}: {'.'.join(map(str, first['loc']))}: {first['msg']} ({error.error_count()} such "
            "problems): it was changed, or written by another version; copy the package, or export it again"
        ) from error


def _check_files(folder: Path, files: Mapping[str, _File], uri: str) -> None:
    if missing := sorted(set(NEEDED) - files.keys()):
        raise PackageError(f"{uri}: {PACKAGE} names no {', '.join(missing)}; copy or export the package again")
    there = set(_local_names(folder)) - {PACKAGE, *UNREAD}
    if unnamed := sorted(there - files.keys()):
        raise PackageError(f"{uri}: {', '.join(unnamed)} is not named in {PACKAGE}; copy or export the package again")
    for name, told in files.items():
        if name not in there:
            raise PackageError(f"{uri}: {name} is missing; copy the package again")
        if (found := _facts(folder / name)) != told:
            raise PackageError(
                f"{uri}: {name} has {found.bytes:,} bytes with the digest {found.sha256[:16]}, and {PACKAGE} names "
                f"{told.bytes:,} with {told.sha256[:16]}: it was truncated or changed; copy the package again"
            )


def _digest(description: Description, files: Mapping[str, _File]) -> str:
    told = {name: file.model_dump() for name, file in files.items()}
    return fingerprint({"format": FORMAT, "description": description.content, "files": told})


def _facts(path: Path) -> _File:
    return _File(bytes=path.stat().st_size, sha256=file_sha256(path))


def _local_names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()]


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = column.to_numpy().astype(np.float32)
    return values

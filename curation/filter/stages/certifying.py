"""Calibration rows with which a filter certifies its cut: those of the package, or fresh ones in a file."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from curation.config.filter import CertifiedConfig
from curation.domains import get_domain
from curation.errors import PackageError, SourceError
from curation.filter.package.folder import TrustPackage
from curation.filter.package.tables import to_floats
from curation.selection.budget import GradedScores
from curation.sources.paths import get_filesystem

CALIBRATION = ("raw", "trust", "correct")


class CertifyingRows(NamedTuple):
    """The rows that certify a cut."""

    rows: GradedScores | None
    """Calibration rows, or None if no rule needs them."""
    floor: float | None
    """Least raw score of the rows from which they were drawn (``curate review``), or None if from all rows."""
    classes: Sequence[str] = ()
    """Closed set of labels, if each has a cut of its own; empty otherwise."""


def read_certifying_rows(config: CertifiedConfig, package: TrustPackage) -> CertifyingRows:
    """Return the rows that certify a cut: fresh ones if they are configured, or else the package's.

    Raises:
        UserError: the rows are missing, cannot be read, or lack labels of the domain if each label has its own cut.
    """
    given, key = config.calibration, "keep.certified.per: label"
    found = CertifyingRows(package.calibration(), None) if given is None else read_calibration(given)
    if config.per == "all":
        return found
    domain = get_domain(package.description.domain)
    if domain.label_sets is not None:
        raise PackageError(
            f"{key}: with domain.multi, as in {package.uri}, a row may have several classes, and is right where the "
            "whole set is, so that no class has rows of its own to certify; leave per out"
        )
    if (classes := domain.closed_labels()) is None:
        raise PackageError(f"{key}: domain {domain.name} of {package.uri} has no closed set of labels; leave per out")
    if found.rows is None or found.rows.label_M is None:
        raise PackageError(
            f"{key}: the calibration rows of {given or package.uri} have no labels; "
            + ("export the package again" if given is None else "give them in a column 'label'")
        )
    known = pa.array(found.rows.label_M, pa.string()).drop_null().unique().to_pylist()
    if strange := sorted(set(known) - set(classes)):
        raise PackageError(
            f"{key}: the calibration rows of {given or package.uri} have the label {strange[0]!r}, which is none "
            f"of the domain's {len(classes)} classes; write it as one of {', '.join(map(str, classes[:8]))}"
        )
    return found._replace(classes=classes)


def read_calibration(path: str) -> CertifyingRows:
    """Return the calibration rows in a Parquet file with the columns ``CALIBRATION``.

    Raises:
        SourceError: the file cannot be read, lacks a column, or has one of another type.
    """
    try:
        opened, inner = get_filesystem(path)
        table = pq.read_table(inner, filesystem=opened)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"keep.certified.calibration: {path}: cannot be read as Parquet: {error}") from error
    for name in CALIBRATION:
        kinds = pa.types.is_boolean if name == "correct" else pa.types.is_floating
        if name not in table.column_names or not kinds(table[name].type):
            found = f"is {table[name].type}" if name in table.column_names else "is missing"
            wanted = "true or false" if name == "correct" else "a floating-point number"
            raise SourceError(
                f"keep.certified.calibration: {path}: column {name!r} {found}; give {', '.join(CALIBRATION)}, "
                f"{name} as {wanted}"
            )
    raw_M, trust_M = (to_floats(table[name]) for name in ("raw", "trust"))
    label_M = table["label"].cast(pa.string()).to_numpy() if "label" in table.column_names else None
    floor = (table.schema.metadata or {}).get(b"floor")
    return CertifyingRows(
        GradedScores(raw_M, trust_M, table["correct"].to_numpy(), label_M), None if floor is None else float(floor)
    )


def compute_calibration_digest(path: str) -> str:
    """Return a digest of the file's content.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        opened, inner = get_filesystem(path)
        with opened.open_input_stream(inner) as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError as error:
        raise SourceError(f"keep.certified.calibration: {path}: cannot be read: {error}") from error

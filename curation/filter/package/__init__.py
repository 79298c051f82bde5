"""Trust packages: a fitted trust function as a small folder, with everything that its use on other rows depends on.

``curate export-trust`` writes a package. The folder can be copied, and is self-contained except for the teacher's
weights, which it names by hub commit or by a digest of their content:

* ``package.json``: the format, the description (:class:`Description`) and a digest of every file;
* ``trust/``: weights and description as ``curation.trust.saved`` writes them;
* ``calibration.parquet``, if the run has such rows: raw score, trust and correctness of held-out labelled rows;
* ``shift.safetensors``: the teacher's hidden states of a sample of the rows that trust was fitted on or, if trust reads
  no states, the hashes of the words of their questions;
* ``cascade/`` and ``cascade.parquet``, if the run kept a state of the prompt: a trust function of prompts, and the rows
  that set a first cut by it;
* ``README.md``: the facts for people, which no code reads.

A folder with any other file is refused, so that a package cannot carry anything that is unpickled or run. The
description has what answers and trust depend on, but not where and how anything runs, which its user decides. The code
that it names is registered by this version or by an installed package, or allowed by name
(``curation.filter.package.code``).
"""

from curation.filter.package.checks import (
    UNJUDGED,
    check_fits,
    check_runs,
    check_verdict,
    compute_digests,
    find_teacher,
)
from curation.filter.package.content import check_content
from curation.filter.package.description import (
    CalibrationRows,
    Cascade,
    Description,
    Interval,
    Made,
    Measured,
    Question,
    RunVerdict,
    Sample,
)
from curation.filter.package.folder import FORMAT, PACKAGE, SCORES, TrustPackage, copy_package, load, write
from curation.filter.package.questions import collect_questions, find_difference
from curation.filter.package.tables import pack_words

__all__ = [
    "FORMAT",
    "PACKAGE",
    "SCORES",
    "UNJUDGED",
    "CalibrationRows",
    "Cascade",
    "Description",
    "Interval",
    "Made",
    "Measured",
    "Question",
    "RunVerdict",
    "Sample",
    "TrustPackage",
    "check_content",
    "check_fits",
    "check_runs",
    "check_verdict",
    "collect_questions",
    "compute_digests",
    "copy_package",
    "find_difference",
    "find_teacher",
    "load",
    "pack_words",
    "write",
]

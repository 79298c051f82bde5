"""Trust packages: a fitted trust function as a small folder, with everything that its use on other rows depends on.

``curate export-trust`` writes a package. The folder can be copied, and is self-contained except for the teacher's
weights, which it names by hub commit or by a digest of their content:

* ``package.json``: the format, the description (:class:`Description`) and a digest of every file;
* ``trust/``: weights and description as ``curation.trust.saved`` writes them;
* ``calibration.parquet``, if the run has such rows: raw score, trust and correctness of held-out labelled rows;
* ``shift.safetensors``: the teacher's hidden states of a sample of the rows that trust was fitted on or, if trust reads
  no states, the hashes of the words of their questions;
* the files of the parts that features add (``curation.filter.parts``): a trust function each, and what it needs;
* ``README.md``: the facts for people, which no code reads.

A folder with any other file is refused, so that a package cannot carry anything that is unpickled or run. The
description has what answers and trust depend on, but not where and how anything runs, which its user decides. The code
that it names is registered by this version or by an installed package, or allowed by name
(``curation.filter.package.description``).
"""

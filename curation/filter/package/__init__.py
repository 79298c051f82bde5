"""Trust packages: a fitted trust function as a small folder, with everything that its use on other rows depends on.

``curate export-trust`` writes it. It is self-contained except for the teacher's weights, which it names by hub commit
or by a digest of their content: ``package.json`` (format, description, a digest of every file); ``trust/`` (weights and
description, :mod:`curation.trust.saved`); ``calibration.parquet``, if the run has such rows (raw score, trust and
correctness of held-out labelled rows); ``shift.safetensors`` (the teacher's hidden states of a sample of the rows that
trust was fitted on or, if trust reads none, the hashes of the words of their questions); the files of features' parts
(``curation.filter.parts``); ``README.md``, which no code reads.

A folder with any other file is refused, so that a package cannot carry anything that is unpickled or run. The
description has what answers and trust depend on, but not where and how anything runs, which its user decides.
"""

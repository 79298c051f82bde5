"""A trust package at work in a user's own process: on a stream of rows, in a pipeline of Ray Data, behind Ray Serve.

Pools of files are the business of ``curate filter``, which labels each row once and survives kills. Here rows come from
the user's own code and go back to it.
"""

from curation.filter.rows import Filter
from curation.filter.watch import ShiftWatch

__all__ = ["Filter", "ShiftWatch"]

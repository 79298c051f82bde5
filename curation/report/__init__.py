"""The report of one or several runs: a self-contained HTML page, and the same numbers as JSON."""

from curation.report.collect import collect
from curation.report.html import write, write_search
from curation.report.record import (
    FORMAT,
    ChainRecord,
    GenerationRecord,
    PassRecord,
    ReviewRecord,
    RunRecord,
    SpentRecord,
    StageSummary,
)
from curation.report.searched import SearchRecord, collect_search, describe_point

__all__ = [
    "FORMAT",
    "ChainRecord",
    "GenerationRecord",
    "PassRecord",
    "ReviewRecord",
    "RunRecord",
    "SearchRecord",
    "SpentRecord",
    "StageSummary",
    "collect",
    "collect_search",
    "describe_point",
    "write",
    "write_search",
]

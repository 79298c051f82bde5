"""The report of a run: one self-contained HTML page, and the same numbers as JSON."""

from curation.report.collect import collect
from curation.report.html import write
from curation.report.record import FORMAT, GenerationRecord, PassRecord, RunRecord, StageRecord

__all__ = ["FORMAT", "GenerationRecord", "PassRecord", "RunRecord", "StageRecord", "collect", "write"]

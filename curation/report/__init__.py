"""The report of one or several runs: a self-contained HTML page, and the same numbers as JSON."""

from curation.report.collect import collect as collect
from curation.report.html import collect_search as collect_search
from curation.report.html import describe_point as describe_point
from curation.report.html import write as write
from curation.report.html import write_page as write_page
from curation.report.record import FORMAT as FORMAT
from curation.report.record import ChainRecord as ChainRecord
from curation.report.record import GenerationRecord as GenerationRecord
from curation.report.record import PassRecord as PassRecord
from curation.report.record import ReviewRecord as ReviewRecord
from curation.report.record import RunRecord as RunRecord
from curation.report.record import StageSummary as StageSummary

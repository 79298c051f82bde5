"""A report with its numbers, which the run's stages compute otherwise."""

from dataclasses import replace

from curation import report
from curation.json_types import Json
from curation.report.numbers import compute_numbers
from curation.report.record import RunRecord


def with_numbers(run: RunRecord) -> RunRecord:
    branches = () if run.chain is None else run.chain.branches.values()
    records = [record for line in (run.generations, *branches) for record in line]
    return replace(run, numbers={record.name: compute_numbers(run, record) for record in records})


def collect(run: RunRecord) -> Json:
    return report.collect(with_numbers(run))

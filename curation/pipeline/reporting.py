"""The report of a run: written where what it is made of changed, and else left as it is."""

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from curation import report
from curation.json_types import Json
from curation.refs import fingerprint
from curation.rundir.graph import plain
from curation.storage.json_files import read_json
from curation.storage.paths import Place
from curation.telemetry.console import say

MADE_OF = "made_of"
"""The key of ``report.json`` with the fingerprint of what the report was made of."""
UNREAD = frozenset({"domain", "config_path", "command"})
"""Fields of a record that are left out: the configuration has the domain, and how a run is called is no result."""


def current(record: report.RunRecord, directory: Place) -> Json:
    """The content of the report in ``directory``, which is written if it is missing or made of something else."""
    made_of = fingerprint({"record": _plain(record), "code": _code()})
    page, numbers = directory / "report.html", directory / "report.json"
    if page.is_file() and (known := _read(numbers)).get(MADE_OF) == made_of:
        say(f"report: {page}, as it was: nothing that it shows has changed (`curate report` writes it again)")
        return known
    content = {**report.collect(record), MADE_OF: made_of}
    say(f"report: {report.write(content, directory)[0]}")
    return content


def _plain(record: report.RunRecord) -> Any:
    return plain({item.name: getattr(record, item.name) for item in fields(record) if item.name not in UNREAD}, {})


def _code() -> str:
    """A digest of this package's code and templates: an editable installation keeps its version as they change."""
    home, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for ending in ("py", "j2") for path in home.rglob(f"*.{ending}")):
        digest.update(f"{path.relative_to(home)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _read(numbers: Place) -> Json:
    """The content of a report; empty where there is none that can be read."""
    try:
        content = read_json(numbers) if numbers.is_file() else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}

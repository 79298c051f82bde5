"""The audits of a run directory, for its report: what ``curate audit result`` wrote about its selections."""

import json

from curation.refs import TableRef
from curation.report import AuditRecord
from curation.storage.paths import Place, Remote
from curation.telemetry.console import say


def read(directory: Place) -> list[AuditRecord]:
    """The audits with a result below ``audit/``, by name; none in an object store, which keeps no verdicts.

    A result that cannot be read is named on the terminal and left out.
    """
    found: list[AuditRecord] = []
    for path in [] if isinstance(directory, Remote) else sorted((directory / "audit").glob("*/audit.json")):
        try:
            result = json.loads(path.read_text())
            if result["selection"] is None:  # of a filter
                continue
            strata = [
                {key: stratum[key] for key in ("num_rows", "selected", "answers")} for stratum in result["strata"]
            ]
            found.append(
                AuditRecord(
                    name=result["audit"],
                    generation=result["generation"],
                    arm=result["arm"],
                    selection=TableRef.from_json(result["selection"]),
                    strata=strata,
                    people=result["people"],
                )
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"report: {path} cannot be read ({error!r}) and is left out; `curate audit result` writes it again")
    return found

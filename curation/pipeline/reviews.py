"""The reviews of a run directory, for its report: what ``curate review result`` wrote about its selections."""

import json

from curation.refs import TableRef
from curation.report import ReviewRecord
from curation.storage.inside import from_record
from curation.storage.paths import Place, Remote
from curation.telemetry.console import say


def read(directory: Place) -> list[ReviewRecord]:
    """Return the reviews with a result below ``review/``, by name; empty for an object store, which has no reviews.

    A result that cannot be read is named on the terminal and left out.
    """
    found: list[ReviewRecord] = []
    for path in [] if isinstance(directory, Remote) else sorted((directory / "review").glob("*/review.json")):
        try:
            result = from_record(json.loads(path.read_text()), directory)
            if result["selection"] is None:  # of a filter
                continue
            strata = [
                {key: stratum[key] for key in ("num_rows", "selected", "answers")} for stratum in result["strata"]
            ]
            found.append(
                ReviewRecord(
                    name=result["review"],
                    generation=result["generation"],
                    arm=result["arm"],
                    selection=TableRef.from_json(result["selection"]),
                    strata=strata,
                    people=result["people"],
                )
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"report: {path} cannot be read ({error!r}) and is left out; `curate review result` writes it again")
    return found

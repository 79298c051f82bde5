"""A signal and its table of values, filled while the same model labels rows, or by a pass of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from curation.json_types import JsonView
from curation.refs import TableRef, fingerprint
from curation.storage.inside import run_around, to_record
from curation.storage.paths import Place
from curation.tables import commits, io, schemas

Values = Mapping[int, float | None]
"""Values by row id; None if the signal's question cannot be made, answered or read."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A signal and the place of its values; pickled to every actor."""

    signal: str
    options: JsonView = field(default_factory=dict)
    """Arguments of the signal's class."""
    seed: int
    """Seed of the model's answers."""
    uri: str
    """URI of the table of values (schema ``schemas.SIGNAL``)."""

    def write(
        self, values: Values, errors: Mapping[int, str] = MappingProxyType({}), *, note: JsonView | None = None
    ) -> pa.Table:
        """Write values and errors as a fragment; return its row of ``commits.WRITTEN``, or no row if both are empty."""
        if not values and not errors:
            return commits.WRITTEN.empty_table()
        columns = {
            "row_id": [*values, *errors],
            "value": [*values.values(), *[None] * len(errors)],
            "error": [*[None] * len(values), *errors.values()],
        }
        return commits.write_fragment(pa.table(columns, schema=schemas.SIGNAL), self.uri, schemas.SIGNAL, note=note)


def ask_of(
    signal: str,
    *,
    seed: int,
    options: Mapping[str, object],
    shots: TableRef | None,
    directory: Place,
    attempts: int = 0,
) -> Ask:
    """Return a signal whose table is in ``directory``, with a name that is unique to its settings.

    ``attempts``: number of times it was measured again by request (``--redo``), each time into a table of its own.
    """
    table = None if shots is None else to_record(shots.to_json(), run_around(directory))
    settings = {"options": options, "shots": table, "seed": seed}
    again = f".{attempts}" if attempts else ""
    name = f"{signal}-{fingerprint(settings)[:8]}{again}.lance"
    if shots is not None:
        options = {**options, "shots": io.read(shots, filter="error IS NULL").to_pylist()}
    return Ask(signal=signal, options=options, seed=seed, uri=str(directory / name))


def make_asks(
    signals: Mapping[str, JsonView], directory: Place, attempts: Mapping[str, int] = MappingProxyType({})
) -> tuple[Ask, ...]:
    """Return the signals to measure as rows are labelled, given by name as arguments of ``ask_of`` and a ``stage``.

    ``attempts``: number of times each stage was redone by request, by its name.
    """
    found = []
    for signal, how in signals.items():
        arguments = {key: value for key, value in how.items() if key != "stage"}
        found.append(ask_of(signal, **arguments, directory=directory, attempts=attempts.get(how["stage"], 0)))
    return tuple(found)

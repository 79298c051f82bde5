"""The growth of a run: splits added to it get rows that no split has yet, and splits assigned before keep their rows.

A deal is a group of splits that one stage prepares: the first deal has the splits with which the run began, each later
deal the splits that were added together. The manifest records the splits of each deal, since the order in which a run
grew determines the rows of every split.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from curation.config import RowsConfig, RunConfig
from curation.errors import RunDirError
from curation.json_types import Json, JsonView
from curation.rundir.manifest import Manifest, StageRecord
from curation.rundir.status import list_differences
from curation.sources import SourceFile, compute_split_sizes

Files = Mapping[str, Sequence[SourceFile]]
"""The input files by source."""
_PROBE = "probe-"


class Deal(BaseModel, frozen=True):
    """A group of splits whose rows are assigned together."""

    splits: tuple[str, ...]
    sources: tuple[str, ...]
    """The sources of the run as of this deal."""


@dataclass(frozen=True, kw_only=True)
class Deals:
    """The deals of a run, in their order."""

    deals: tuple[Deal, ...]
    rows: tuple[RowsConfig, ...]
    """The definition of the rows as of each deal: the splits of this deal and of earlier deals."""

    def taken(self, files: Files, before: int | None = None) -> dict[str, int]:
        """Return the number of rows of each split of the deals before deal ``before`` or, if None, before the last."""
        taken: dict[str, int] = {}
        for rows in self.rows[:before] if before is not None else self.rows[:-1]:
            taken = compute_split_sizes(rows, files, taken)
        return taken

    def to_json(self) -> list[Json]:
        """Return the deals as the manifest keeps them."""
        return [deal.model_dump(mode="json") for deal in self.deals]


def format_prepare_name(number: int) -> str:
    """Return the name of the stage that prepares the deal with this number."""
    return f"prepare-{number}" if number else "prepare"


def iter_prepare_records(manifest: Manifest) -> Iterator[StageRecord]:
    """Yield the records of the stages that prepared rows, in the order of the deals."""
    for number in range(max(1, len(manifest.deals))):
        if (record := manifest.stages.get(format_prepare_name(number))) is not None:
            yield record


def get_rows_identity(config: RunConfig) -> Json:
    """Return the part of a run that defines its rows."""
    rows = config.model_copy(update=config.ungraded)  # another check grades the same rows again
    # The keys left out of splits change no row id: a run refused for shared questions or bad rows goes on with them.
    return {
        "seed": rows.seed,
        "domain": rows.domain.to_key(),
        "sources": {name: source.to_key() for name, source in rows.sources.items()},
        "splits": rows.splits.without({"overlap", "max_error_rate"}).to_key(),
    }


def find_deals(config: RunConfig, manifest: Manifest) -> Deals:
    """Return the deals of a run directory, the last of which has the splits that the configuration adds.

    The splits of a deal whose stage is not done may still be changed or removed.

    Raises:
        RunDirError: rows that were assigned before would not stay as they are.
    """
    now = get_rows_identity(config)
    deals = [Deal.model_validate(deal) for deal in manifest.deals] or [make_first_deal(manifest.identity or now)]
    if manifest.identity and manifest.identity != now:
        for number in range(1, len(deals)):
            if format_prepare_name(number) not in manifest.stages:
                del deals[number:]
                break
        splits = {name for deal in deals for name in deal.splits}
        before, after = (_select_part(part, splits, set(deals[-1].sources)) for part in (manifest.identity, now))
        if before != after:
            changes = "; ".join(list_differences(before, after))
            raise RunDirError(
                f"{manifest.directory}: belongs to another configuration ({changes}); rows stay in their splits, and "
                "splits and sources can only be added; give this one another name or run_dir, or undo the change"
            )
        if added := {name: split.source for name, split in config.splits.named().items() if name not in splits}:
            sources = tuple(dict.fromkeys([*deals[-1].sources, *added.values()]))
            deals.append(Deal(splits=tuple(added), sources=sources))

    rows, names, every = list[RowsConfig](), set[str](), config.rows.splits
    for number, deal in enumerate(deals):
        names |= set(deal.splits)
        changed: Json = {name: None for name in every.named() if name not in names and not name.startswith(_PROBE)}
        changed["probes"] = {name: probe for name, probe in every.probes.items() if _PROBE + name in names}
        record = manifest.stages.get(format_prepare_name(number)) if number + 1 < len(deals) else None
        if record is not None:  # its overlap stays as it was handled; a key holds no defaults
            default = type(every).model_fields["overlap"].default
            changed["overlap"] = record.inputs["config"]["splits"].get("overlap", default)
        kept = {name: source for name, source in config.rows.sources.items() if name in deal.sources}
        rows.append(config.rows.model_copy(update={"splits": every.model_copy(update=changed), "sources": kept}))
    return Deals(deals=tuple(deals), rows=tuple(rows))


def describe_growth(config: RunConfig, deals: Deals, files: Files) -> str | None:
    """Return a sentence on what the last deal adds to a run and what stays, or None if the run has not grown."""
    if len(deals.deals) == 1:
        return None
    taken = deals.taken(files)
    sizes, named = compute_split_sizes(deals.rows[-1], files, taken), config.splits.named()
    added = deals.deals[-1].splits
    new = ", ".join(f"{name} ({sizes[name]:,} rows of {named[name].source})" for name in added)
    stay = ", ".join(f"{name} ({number:,})" for name, number in taken.items())
    return f"added to the run: {new}; the rows of {stay} stay as they are"


def make_first_deal(identity: JsonView) -> Deal:
    """Return the deal of a run that has not grown, from the definition of its rows."""
    splits = identity.get("splits", {})
    names = [name for name, value in splits.items() if name != "probes" and isinstance(value, Mapping)]
    names += [_PROBE + name for name in splits.get("probes", {})]
    return Deal(splits=tuple(names), sources=tuple(identity.get("sources", {})))


def _select_part(identity: JsonView, splits: set[str], sources: set[str]) -> Json:
    """Return the part of an identity that covers only these splits and sources."""
    part = dict(identity)
    if "sources" in part:
        part["sources"] = {name: value for name, value in part["sources"].items() if name in sources}
    if "splits" in part:
        every = part["splits"]
        kept = {
            name: value
            for name, value in every.items()
            if value is not None and (name in splits or not isinstance(value, Mapping))
        }
        probes = {name: value for name, value in every.get("probes", {}).items() if _PROBE + name in splits}
        part["splits"] = kept | {"probes": probes}
    return part

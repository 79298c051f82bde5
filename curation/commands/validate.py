"""``curate validate``: whether a run can start."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from curation import models
from curation.config import ModelConfig, RunConfig, TuneConfig
from curation.config.resolved import describe_resolved, iter_warnings
from curation.config.states import find_depth_problem, find_other_layers
from curation.errors import ModelError
from curation.features import parts
from curation.pipeline.grading import require_checkers
from curation.pipeline.growth import describe_growth, find_deals
from curation.pipeline.opened import check_settings, settle
from curation.pipeline.outlook import iter_few_steps, iter_memory_lines, iter_type_lines
from curation.pipeline.roles import check_models
from curation.pipeline.students import check_students
from curation.rundir.manifest import Manifest
from curation.sources import compute_split_sizes, discover
from curation.stages.fit import check_search
from curation.stages.prepare import check_columns
from curation.stages.preview import check_preview, find_possible_groups, iter_group_warnings, preview
from curation.storage.paths import require_reachable


class CheckedLine(NamedTuple):
    """A line on something that was checked."""

    kind: Literal["source", "split", "rows", "model", "setting", "memory", "warning"]
    text: str


def check(config: RunConfig) -> Iterator[CheckedLine]:
    """Yield lines on files, rows, models, settings, memory and warnings; refuse what ``curate run`` would refuse."""
    for _, require, section in parts(config, "require"):
        require(section)
    require_reachable(config.directory, writable=True)
    check_models(config, loads=True)
    config = settle(config)
    require_checkers(config)
    check_students(config)
    manifest = Manifest.load(config.directory)
    manifest.require_current()
    deals, known = find_deals(config, manifest), manifest.source_files
    files = {name: discover(source, known.get(name, ())) for name, source in config.sources.items()}
    for name, items in files.items():
        check_columns(config, name, items)
        rows = sum(file.num_rows for file in items)
        yield CheckedLine("source", f"source {name}: {len(items)} files, {rows:,} rows")
    taken = deals.taken(files)
    sizes = compute_split_sizes(config, files, taken)
    num_pool = config.pool_share(sizes)
    for name, num_rows in sizes.items():
        yield CheckedLine("split", f"split {name}: {num_rows:,} rows")
    if (added := describe_growth(config, deals, files)) is not None:
        yield CheckedLine("split", added)
    if (shares := config.num_shares) > 1:
        num = max(1, len(config.generations))
        left = f"; {shares - num} more are left for generations that are added later" if shares > num else ""
        yield CheckedLine(
            "split", f"{num} generations label one of {shares} shares of the pool each, {num_pool:,} rows{left}"
        )
    seen = preview(config, files, taken)
    yield from (CheckedLine("rows", line) for line in check_preview(seen, config))
    yield from (CheckedLine("setting", line) for line in check_settings(config, files, num_pool))
    if config.trust.search or config.tune != TuneConfig():
        check_search(config)
    teachers = {"teacher", "reader", *(f"student {index}" for index in range(len(config.generations) - 1))}
    for role, model in config.models.items():
        states = config.teacher.states if role in teachers else ()
        yield CheckedLine("model", f"{role}: {_describe_model(model, states)}")
    yield from (CheckedLine("setting", line) for line in (*describe_resolved(config), *iter_type_lines(config)))
    yield from (CheckedLine("memory", line) for line in iter_memory_lines(config))
    words = [
        *iter_warnings(config),
        *iter_few_steps(config, num_pool),
        *iter_group_warnings(find_possible_groups(config, seen)),
    ]
    yield from (CheckedLine("warning", f"warning: {line}") for line in words)


def _describe_model(model: ModelConfig, states: Sequence[str]) -> str:
    """Return a model in words; raise a ``ModelError`` if it lacks a layer that ``states`` names."""
    if model.init is not None:
        if (problem := find_depth_problem(states, model.init.num_layers)) is not None:
            raise ModelError(f"teacher.states: {problem} (a model from scratch)")
        return f"{model.init.family} from scratch, {model.init.num_layers} layers of {model.init.hidden_size}"
    ref = models.pin_model(model)
    if find_other_layers(states):
        models.get_state_size(ref, states)
    runs = "" if ref.code is None else f"; its own code runs, {ref.code}"
    return f"{ref.base} at {ref.revision}{runs}"

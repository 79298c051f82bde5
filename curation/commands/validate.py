"""``curate validate``: checks whether a run can start."""

from collections.abc import Iterator, Sequence

from curation import models
from curation.cluster import capacity
from curation.config import ModelConfig, RunConfig
from curation.config.resolved import resolved, warnings
from curation.config.states import beyond, others_of
from curation.domains import get_domain
from curation.errors import ModelError
from curation.pipeline.chain import check_models
from curation.pipeline.searching import check as check_search
from curation.selection.budget import check_pool
from curation.sources import discover, require_columns, split_sizes
from curation.stages.preview import check_preview, preview
from curation.storage.paths import require_reachable
from curation.telemetry import tracking


def check(config: RunConfig) -> Iterator[str]:
    """Lines on files, rows of each split, models, settings from the domain's defaults, and warnings.

    Raises:
        UserError: something is wrong; the message is the same as from `curate run`.
    """
    tracking.require(config.tracking)
    require_reachable(config.directory, writable=True)
    check_models(config, loads=True)
    files = {name: discover(source) for name, source in config.sources.items()}
    for name, items in files.items():
        require_columns(items, get_domain(config.sources[name].domain or config.domain).forms)
        yield f"source {name}: {len(items)} files, {sum(file.num_rows for file in items):,} rows"
    sizes = split_sizes(config, files)
    for name, num_rows in sizes.items():
        yield f"split {name}: {num_rows:,} rows"
    yield from check_preview(preview(config, files), config)
    num_pool = sizes["pool"] // max(1, len(config.generations))
    check_pool(config.selection.budget, num_pool)
    if config.trust.search or "tune" in config.model_fields_set:
        check_search(config, num_pool)
    teachers = {"teacher", *(f"student {index}" for index in range(len(config.generations) - 1))}
    for role, model in config.models.items():
        states = config.teacher.states if role in teachers else ()
        yield f"{role}: {_described(model, states)}"
    yield from resolved(config)
    yield from (f"warning: {line}" for line in warnings(config))
    if capacity.address_of(config.ray) == capacity.LOCAL:
        yield from (f"warning: {line}" for line in capacity.idle(config, [capacity.this_machine(config.ray)]))


def _described(model: ModelConfig, states: Sequence[str]) -> str:
    """A model in words; refuses a model without a layer that ``states`` names."""
    if model.init is not None:
        if (problem := beyond(states, model.init.num_layers)) is not None:
            raise ModelError(f"teacher.states: {problem} (a model from scratch)")
        return f"{model.init.family} from scratch, {model.init.num_layers} layers of {model.init.hidden_size}"
    ref = models.named(model)
    if others_of(states):
        models.state_size(ref, states)
    runs = "" if ref.code is None else f"; its own code runs, {ref.code}"
    return f"{ref.base} at {ref.revision}{runs}"

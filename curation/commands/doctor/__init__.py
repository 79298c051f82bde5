"""``curate doctor``: checks machine, packages, configuration, storage and cluster; says how to fix each problem."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from curation.cluster.capacity import LOCAL, address_of
from curation.commands.doctor import joined, machine, storage, teacher
from curation.commands.doctor.finding import Finding, found, ok
from curation.config import RayConfig, RunConfig
from curation.config.load import load_config

__all__ = ["Finding", "examine"]


def examine(
    config_path: str | None = None,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    vllm: bool = False,
    cluster: bool = False,
) -> Iterator[Finding]:
    """Yield each finding as soon as its check ends. Without a configuration, check only this machine.

    ``address`` of a Ray cluster overrides the configuration's. ``vllm`` probes vLLM even if the configuration does not
    use it. ``cluster`` lets an actor on every node label rows and write them to the run's store.
    """
    yield found("python", machine.python)
    yield found("packages", machine.packages)
    yield found("machine", machine.cores_and_memory)
    yield found("clock", machine.clock)
    config: RunConfig | None = None
    if config_path is not None:
        loaded: list[RunConfig] = []

        def load() -> Finding:
            loaded.append(load_config(config_path, overrides))
            return ok(f"{config_path} is valid; run directory {loaded[0].directory}")

        yield found("config", load)
        config = loaded[0] if loaded else None
    settings = RayConfig() if config is None else config.ray
    settings = settings.model_copy(update={"address": address or settings.address})
    if config is not None:
        config = config.model_copy(update={"ray": settings})
        yield found("inputs", _inputs, config)
    directory = Path("runs").absolute() if config is None else config.directory
    if isinstance(directory, Path):
        yield found("disk of the run", machine.disk, directory)
    yield found("disk of Ray", machine.ray_disk)
    yield found("shared memory", machine.shared_memory)
    local = address_of(settings) == LOCAL
    yield found("gpu", machine.gpu, teacher.gpus_asked(config) if config is not None and local else 0.0)
    yield found("files", storage.files, directory)
    yield found("tables", storage.tables, directory)
    if local:
        yield found("vllm", teacher.vllm_here, config, vllm)
    yield from joined.examine(settings, config, directory, vllm=vllm, cluster=cluster)


def _inputs(config: RunConfig) -> Finding:
    from curation.commands.validate import check

    return ok("; ".join(line.text for line in check(config)))

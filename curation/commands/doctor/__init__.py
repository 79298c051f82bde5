"""``curate doctor``: checks machine, packages, configuration, storage and cluster; says how to fix each problem."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from curation.cluster.capacity import LOCAL, find_address
from curation.commands.doctor import joined, machine
from curation.commands.doctor.machine import Finding, ok, run_check
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
    yield run_check("python", machine.check_python)
    yield run_check("packages", machine.check_packages)
    yield run_check("machine", machine.check_cores_and_memory)
    yield run_check("clock", machine.check_clock)
    config: RunConfig | None = None
    if config_path is not None:
        loaded: list[RunConfig] = []

        def load() -> Finding:
            loaded.append(load_config(config_path, overrides))
            return ok(f"{config_path} is valid; run directory {loaded[0].directory}")

        yield run_check("config", load)
        config = loaded[0] if loaded else None
    settings = RayConfig() if config is None else config.ray
    settings = settings.model_copy(update={"address": address or settings.address})
    if config is not None:
        config = config.model_copy(update={"ray": settings})
        yield run_check("inputs", _check_inputs, config)
    directory = Path("runs").absolute() if config is None else config.directory
    if isinstance(directory, Path):
        yield run_check("disk of the run", machine.check_disk, directory)
    yield run_check("disk of Ray", machine.check_ray_disk)
    yield run_check("shared memory", machine.check_shared_memory)
    local = find_address(settings) == LOCAL
    yield run_check("gpu", machine.check_gpu, machine.count_gpus_asked(config) if config is not None and local else 0.0)
    yield run_check("files", machine.check_writing, directory)
    yield run_check("tables", machine.check_tables, directory)
    if local:
        yield run_check("vllm", machine.check_vllm_here, config, vllm)
    yield from joined.examine(settings, config, directory, vllm=vllm, cluster=cluster)


def _check_inputs(config: RunConfig) -> Finding:
    from curation.commands.validate import check

    return ok("; ".join(line.text for line in check(config)))

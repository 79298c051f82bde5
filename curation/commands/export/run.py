"""Reads a run directory for exports, from its manifest and configuration."""

import json

from curation.arms import REFERENCE_ARM
from curation.config import RunConfig
from curation.config.load import load_config
from curation.errors import ExportError
from curation.rundir.graph import Stage
from curation.rundir.manifest import Manifest
from curation.stages.fit import FitTrust, Search
from curation.storage.paths import Place, require_reachable


def read_run(run: Place) -> tuple[RunConfig, Manifest]:
    """Return the configuration and the manifest of a run directory.

    Raises:
        ExportError: the directory is not a run directory.
    """
    require_reachable(run)
    if not all((run / name).is_file() for name in ("manifest.json", "config.yaml")):
        raise ExportError(
            f"{run}: is not a run directory (manifest.json or config.yaml is missing); give the run_dir of a run"
        )
    return load_config(run / "config.yaml", (f"run_dir={json.dumps(str(run))}",)), Manifest.load(run)


def choose_generation(config: RunConfig, generation: int | None, there: str) -> int:
    """Return the requested generation, or the last one if none is requested.

    Raises:
        ExportError: the run has no such generation; ``there`` is the end of the message.
    """
    last = max(0, len(config.generations) - 1)
    if generation is not None and not 0 <= generation <= last:
        raise ExportError(f"generation {generation}: the run's generations are 0 to {last}; {there}")
    return last if generation is None else generation


def choose_arm(config: RunConfig, arm: str | None, there: str) -> str:
    """Return the requested arm; if none is requested, ``trust`` or the only one.

    Raises:
        ExportError: the run has no such arm, or several and none is requested; ``there`` is the end of the message.
    """
    arms = config.selection.arms
    if arm is None and REFERENCE_ARM not in arms and len(arms) > 1:
        raise ExportError(f"arm: name one of the run's arms ({', '.join(arms)}); {there}")
    found = arm or (REFERENCE_ARM if REFERENCE_ARM in arms else arms[0])
    if found not in arms:
        raise ExportError(f"arm {found}: the run's arms are {', '.join(arms)}; {there}")
    return found


def get_fitting_stage(config: RunConfig, trust: str) -> str:
    """Return the name, without the generation, of the stage that fits a trust function, for messages."""
    if get_fitting_class(config, trust) is Search:
        return "search"
    return "trust" if trust == REFERENCE_ARM else f"trust-{trust}"


def get_fitting_class(config: RunConfig, trust: str) -> type[Stage]:
    """Return the class of the stage that fits a trust function.

    The manifest may also have a stage of the other class, which ran before the setting changed.
    """
    return Search if trust == REFERENCE_ARM and config.trust.search else FitTrust

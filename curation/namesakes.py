"""Keeps a user's modules from hiding packages of the same name, ours or installed ones, in any process.

Two packages of this project have common names, ``train`` and ``tune``: a ``train.py`` in the folder where a command is
given must not take their place. Ray puts the driver's working directory before all other places where its workers look
for modules, so a ``datasets.py`` there would hide the library on the workers alone. This module makes the driver
and the workers look in the same order.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from curation.errors import ConfigError

NAMES = ("train", "tune")
"""The packages of this project beside ``curation``."""
HOME = Path(os.path.abspath(__file__)).parents[1]
"""The folder with these packages: a checkout, or where packages are installed."""


class _Behind(MetaPathFinder):
    """A finder that keeps a folder last on ``sys.path``, since Ray puts it first when a worker's first task arrives."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Move the folder to the end of ``sys.path``, and find nothing."""
        if self._folder in sys.path and sys.path[-1] != self._folder:
            sys.path.remove(self._folder)
            sys.path.append(self._folder)
        return None


def claim() -> None:
    """Make this process find our ``train`` and ``tune``; ``ConfigError`` if it has imported another such module."""
    for name in NAMES:
        module = sys.modules.get(name)
        if module is not None and not _is_in(module.__spec__, HOME):
            raise ConfigError(
                f"{name}: this program has imported {getattr(module, '__file__', None) or 'a module'} by that name, "
                f"which is also a package of trust-curation; rename it, e.g. my_{name}.py, or give `curate run` in "
                "place of this program"
            )
        if module is None and (file := HOME / name / "__init__.py").is_file():
            spec = spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None, "a Python file has a loader"
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])


def make_sender() -> Callable[[], None] | None:
    """Return a picklable function that makes Ray's workers find modules as this process does; None if they do."""
    folder = os.path.abspath(os.curdir)
    paths = [*Path(folder).glob("*.py"), *(path.parent for path in Path(folder).glob("*/__init__.py"))]
    names = {path.name.removesuffix(".py") for path in paths}
    if not any(name.isidentifier() and _is_elsewhere(name, Path(folder)) for name in names):
        return None
    behind = folder not in map(os.path.abspath, sys.path)

    def receive() -> None:
        from curation import namesakes

        if behind:
            sys.meta_path.insert(0, namesakes._Behind(folder))
        namesakes.claim()

    return receive


def _is_elsewhere(name: str, folder: Path) -> bool:
    try:
        found = find_spec(name)
    except ValueError:  # the main program has none
        return False
    return found is not None and not _is_in(found, folder)


def _is_in(spec: ModuleSpec | None, folder: Path) -> bool:
    """Return whether a module lies in a folder, as a file or a package."""
    origin = None if spec is None or not spec.has_location else spec.origin
    return origin is not None and Path(os.path.abspath(origin)).parent in (folder, folder / Path(origin).parent.name)

"""Keeps a user's modules from hiding packages of the same name on the driver and on Ray's workers.

Two packages of this project have common names, ``train`` and ``tune``: a ``train.py`` in the folder where a command is
given must not take their place. Ray puts the driver's working directory before all other places where its workers look
for modules. So they claim the two as the driver does, and any other module there that would hide a library on the
workers alone is refused before Ray starts.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from curation.errors import ConfigError

NAMES = ("train", "tune")
"""The packages of this project beside ``curation``."""
HOME = Path(os.path.abspath(__file__)).parents[1]
"""The folder with these packages: a checkout, or where packages are installed."""


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


def check_folder() -> str | None:
    """Return the function that Ray's workers call first, if any; refuse a folder that hides a library from them."""
    folder = Path(os.path.abspath(os.curdir))
    there = {path.name.removesuffix(".py") for path in folder.glob("*.py")}
    there |= {path.parent.name for path in folder.glob("*/__init__.py")}
    for name in sorted(there.difference(NAMES)):
        # A module of Python's own that is not in use, such as `test`, may be hidden.
        if _is_elsewhere(name, folder) and (name not in sys.stdlib_module_names or name in sys.modules):
            raise ConfigError(
                f"{folder / name}: a module in the working directory takes the place of the library {name} on Ray's "
                "workers; rename it, or give the command in another folder"
            )
    return f"{__name__}.claim" if folder != HOME and there.intersection(NAMES) else None


def _is_elsewhere(name: str, folder: Path) -> bool:
    """Return whether this process finds a module, and not in the folder."""
    try:
        found = find_spec(name) if name.isidentifier() else None
    except ValueError:  # the main program has none
        return False
    return found is not None and not _is_in(found, folder)


def _is_in(spec: ModuleSpec | None, folder: Path) -> bool:
    """Return whether a module lies in a folder, as a file or a package."""
    origin = None if spec is None or not spec.has_location else spec.origin
    return origin is not None and Path(os.path.abspath(origin)).parent in (folder, folder / Path(origin).parent.name)

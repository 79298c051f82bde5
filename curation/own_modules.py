"""Finds a user's modules that lie beside a configuration file, on the driver and on Ray's workers.

Only a command that is given the file looks there. Python looks in every other place first, so that a ``json.py`` hides
no installed module. A module is found only if the configuration names it (``module:NAME``), or a module found before
imports or names it. No metadata in the folder counts as an installed package. For these rules the folder cannot be on
``sys.path``. Ray sends the modules to its workers (``py_modules``), so that other nodes need not have the folder.
"""

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_NAMED = re.compile(r"([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]\w*")

_folder: str | None = None
_files: dict[str, Path] = {}
"""Files of the requested modules by name; ``__init__.py`` of packages."""


class _Finder(MetaPathFinder):
    """A finder of the requested modules, which Python asks after all others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a requested module, or None for any other one."""
        return spec_from_file_location(fullname, _files[fullname]) if fullname in _files else None


sys.meta_path.append(_Finder())


def search_beside(path: str) -> None:
    """Find modules beside a configuration file from now on, and forget those found beside an earlier one."""
    global _folder
    if "://" not in path:
        for name in list(sys.modules):
            if name.partition(".")[0] in _files:
                del sys.modules[name]
        _files.clear()
        _folder = os.path.dirname(os.path.abspath(path))


def import_own_module(name: str) -> ModuleType:
    """Return the module of that name, also from beside the configuration, or raise ``ImportError``.

    From there, the modules that it imports or names can be imported, too.
    """
    folder, requested = Path(_folder or ""), [] if _folder is None else [name.partition(".")[0]]
    while requested:
        top = requested.pop()
        package = folder / top
        file = package / "__init__.py" if (package / "__init__.py").is_file() else folder / f"{top}.py"
        if top in _files or not file.is_file() or _is_elsewhere(top, file):
            continue
        _files[top] = file
        for source in package.rglob("*.py") if file.parent == package else [file]:
            requested += _iter_mentioned(decode_source(source.read_bytes()))
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise ImportError(f"{error.filename}: line {error.lineno}: {error.msg}") from error


def suggest_mend(name: str, error: BaseException) -> str:
    """Return the fix if the module of ``module:NAME`` does not exist, or "" if an error has another cause."""
    top = name.partition(":")[0].partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != top:
        return ""
    at = "a configuration file that a command is given" if _folder is None else f"the configuration, in {_folder}"
    return f"; put {top}.py beside {at}, install it, or put its folder on PYTHONPATH"


def list_sent_files() -> list[str]:
    """Return files and package folders of the modules requested so far, for the ``py_modules`` of Ray's runtime_env."""
    return [str(file.parent if file.name == "__init__.py" else file) for file in _files.values()]


def _is_elsewhere(name: str, file: Path) -> bool:
    """Return whether Python finds a module of that name in another place than ``file``."""
    try:
        found = find_spec(name)
    except ValueError:  # the main program has none
        return True
    return found is not None and found.origin != str(file)


def _iter_mentioned(text: str) -> Iterator[str]:
    """Yield the modules that a source imports, or names as ``module:NAME``."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # its import says so
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name.partition(".")[0] for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (named := _NAMED.fullmatch(node.value)):
            yield named[1]

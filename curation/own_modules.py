"""Modules of a user's own that lie beside a configuration file: found by name, on the driver and on Ray's workers.

Only a command that is given the file looks there, and nothing else in the folder comes into reach: Python asks every
other place first, so that a ``json.py`` hides no installed module; a module is found only if the configuration names
it (``module:NAME``), or one that was found imports or names it; and no metadata there passes for an installed package.
Workers are sent the sources, so that other nodes need not have the folder.
"""

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, spec_from_loader
from pathlib import Path
from types import ModuleType

MOST_BYTES = 16 << 20
"""The most bytes of all sources together: every worker is sent them."""
_NAMED = re.compile(r"([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]\w*")


class _Loader(ExecutionLoader):
    """A module from its source, which is kept."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text = file, text

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_source(self, fullname: str) -> str:
        return self._text

    def is_package(self, fullname: str) -> bool:
        return self._file.endswith("__init__.py")


class _Finder(MetaPathFinder):
    """The wanted modules of a folder, whose ``sources`` are by their paths within it."""

    def __init__(self, folder: str, sources: dict[str, str]) -> None:
        self.folder, self.sources = folder, sources

    def want(self, module: str) -> None:
        """Let a module be found, and what it imports or names, as far as it lies in the folder."""
        wanted = [module.partition(".")[0]]
        while wanted:
            top = wanted.pop()
            if f"{top}.py" in self.sources or f"{top}/__init__.py" in self.sources:
                continue
            for inner in _files(Path(self.folder), top):
                self.sources[inner] = text = decode_source((Path(self.folder) / inner).read_bytes())
                wanted += _mentioned(text)
        if (size := sum(map(len, self.sources.values()))) > MOST_BYTES:
            raise ValueError(
                f"modules in {self.folder} have {size:,} characters, more than {MOST_BYTES:,}: install them"
            )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module's source is, if it is wanted."""
        name = fullname.replace(".", "/")
        for inner in (f"{name}/__init__.py", f"{name}.py"):
            if (text := self.sources.get(inner)) is not None:
                return spec_from_loader(fullname, _Loader(os.path.join(self.folder, inner), text))
        return None


_finder: _Finder | None = None


def beside(path: str) -> None:
    """From now on find modules beside this configuration file, in place of those beside an earlier one."""
    if "://" not in path:
        _install(_Finder(os.path.dirname(os.path.abspath(path)), {}))


def imported(name: str) -> ModuleType:
    """The module of that name, also from beside the configuration.

    Raises:
        ImportError: there is none; it imports what is not there, or it is no Python.
        ValueError: the modules are too large to be sent to workers.
    """
    if _finder is not None:
        _finder.want(name)
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise ImportError(f"{error.filename}: line {error.lineno}: {error.msg}") from error


def hint(name: str, error: BaseException) -> str:
    """The mend where ``module:NAME`` was not found; "" where the module is there, and something else is wrong."""
    top = name.partition(":")[0].partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != top:
        return ""
    at = (
        "a configuration file that a command is given" if _finder is None else f"the configuration, in {_finder.folder}"
    )
    return f"; put {top}.py beside {at}, install it, or put its folder on PYTHONPATH"


def sender() -> Callable[[], None] | None:
    """A function, to be pickled, by which a process finds the modules wanted until now; ``None`` if there are none."""
    if _finder is None or not _finder.sources:
        return None
    folder, sources = _finder.folder, dict(_finder.sources)

    def receive() -> None:
        from curation import own_modules

        own_modules._install(own_modules._Finder(folder, sources))

    return receive


def _install(finder: _Finder) -> None:
    global _finder
    if _finder is not None:
        sys.meta_path.remove(_finder)
        for name, module in list(sys.modules.items()):
            if isinstance(getattr(module, "__loader__", None), _Loader):
                del sys.modules[name]
    _finder = finder
    sys.meta_path.append(finder)


def _files(folder: Path, top: str) -> Iterator[str]:
    """The source of a module, or all sources of a package, by their paths within the folder."""
    if (folder / top / "__init__.py").is_file():
        yield from (str(file.relative_to(folder)) for file in sorted((folder / top).rglob("*.py")))
    elif (folder / f"{top}.py").is_file():
        yield f"{top}.py"


def _mentioned(text: str) -> Iterator[str]:
    """The modules that a source imports, or names as ``module:NAME``."""
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

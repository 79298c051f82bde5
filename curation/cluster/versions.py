"""The installed versions of the packages that a result depends on."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

PROJECT = "trust-curation"
PACKAGES = (PROJECT, "ray", "torch", "transformers", "peft", "pylance", "pyarrow", "scikit-learn", "chess")


@cache
def find_versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages that a result depends on, as this process first found them."""
    return MappingProxyType(ask_versions()())


def ask_versions() -> Callable[[], dict[str, str]]:
    """Return the function behind :func:`find_versions`, pickled by value so that other processes can call it, too."""
    packages = PACKAGES

    def found() -> dict[str, str]:
        import importlib.metadata
        import platform

        versions = {"python": platform.python_version()}
        for package in packages:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = "not installed"
        return versions

    return found

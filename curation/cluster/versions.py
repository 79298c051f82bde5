"""The installed versions of the packages that a result depends on, and a digest of this project's code."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

PROJECT = "trust-curation"
PACKAGES = (PROJECT, "ray", "torch", "transformers", "peft", "pylance", "pyarrow", "scikit-learn", "chess")
CODE = f"{PROJECT} code"
"""The key for a digest of this project's modules: an editable installation keeps its version while its code changes."""


@cache
def find_versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages that a result depends on, as this process first found them."""
    return MappingProxyType(make_versions_question(with_code=False)())


def make_versions_question(*, with_code: bool = True) -> Callable[[], dict[str, str]]:
    """Return the question for a process's versions, pickled by value: another process may have other code, or none."""
    packages, code = PACKAGES, CODE

    def versions() -> dict[str, str]:
        import hashlib
        import importlib.metadata
        import importlib.util
        import platform
        from pathlib import Path

        found = {"python": platform.python_version()}
        for package in packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[package] = "not installed"
        if not with_code:
            return found
        spec = importlib.util.find_spec("curation")
        if spec is None or spec.origin is None:
            return found | {code: "not installed"}
        digest, root = hashlib.sha256(), Path(spec.origin).parents[1]
        for path in sorted(path for part in ("curation", "train") for path in (root / part).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
        return found | {code: digest.hexdigest()[:8]}

    return versions

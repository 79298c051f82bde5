"""Checks of the code that a package names, which must be registered here or allowed by the user.

A package may come from a stranger, so names are checked before anything is imported for them.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from curation.arms import TRUST, Fitted
from curation.config.defaults import ENTRY_POINTS
from curation.errors import PackageError
from curation.registry import BACKENDS, DOMAINS, find_installed


def refuse_code(uri: str, description: object, allowed: Collection[str]) -> None:
    """Refuse a description, as ``package.json`` has it, that names code which is neither registered nor allowed.

    Raises:
        PackageError: the description does; the message names the code, and how to allow it.
    """
    for key, name, registered in _iter_names(description):
        if name not in registered and name not in allowed:
            raise _make_unknown_error(uri, key, name)
    domain = description.get("domain") if isinstance(description, Mapping) else None
    if (command := _find_command(domain)) is not None:
        raise PackageError(
            f"{uri}: its domain brings a command to check answers, {command!r}, and a package never brings one; "
            "nothing of it was run. Export it again with this version, which leaves it out"
        )


def refuse_maker(uri: str, name: object, allowed: Collection[str]) -> None:
    """Refuse a class, ``module:Class``, that no registered trust function is made by and that is not allowed.

    Raises:
        PackageError: the class is such; the message names it, and how to allow it.
    """
    if name not in allowed and not any(_is_made_by(TRUST[kind], name) for kind in TRUST):
        brought = (TRUST.find(kind) for group in TRUST.groups for kind in find_installed(group))
        if not any(_is_made_by(trust, name) for trust in brought):
            raise _make_unknown_error(uri, "made_by", name)


def _is_made_by(trust: object, name: object) -> bool:
    return isinstance(trust, Fitted) and trust.made_by == name


def _iter_names(description: object) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield, for each name of code in a description, its key, the name, and the names registered for the key."""
    if not isinstance(description, Mapping):
        return
    yield from _iter_domains(description.get("domain"))
    asks = {name: part for name in ("ask", "bought") if isinstance(part := description.get(name), Mapping)}
    backends = [(f"{name}.backend", part.get("backend"), BACKENDS.names) for name, part in asks.items()]
    for key, name, registered in (*backends, ("trust", description.get("trust"), TRUST.names)):
        if isinstance(name, str):
            yield key, name, registered


def _iter_domains(value: object) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield the names of a domain and of the domains that it wraps, such as ``next_token``'s."""
    name = value.get("name") if isinstance(value, Mapping) else value
    if isinstance(name, str):
        yield "domain", name, DOMAINS.keys() | find_installed(ENTRY_POINTS).keys()
    if isinstance(value, Mapping):
        yield from _iter_domains(value.get("of"))


def _find_command(domain: object) -> Any:
    """Return the command that a domain, or a domain that it wraps, configures as its check; None without one."""
    if isinstance(domain, Mapping):
        for key, value in domain.items():
            if key == "check" and isinstance(value, Mapping) and "command" in value:
                return value["command"]
            if (found := _find_command(value)) is not None:
                return found
    return (
        next((found for part in domain if (found := _find_command(part)) is not None), None)
        if isinstance(domain, list)
        else None
    )


def _make_unknown_error(uri: str, key: str, name: object) -> PackageError:
    return PackageError(
        f"{uri}: names {name!r} as {key}, which neither this version nor an installed package registers; nothing of it "
        f"was imported. Install the package that brings it or, if you have read that code, add --allow-code {name}"
    )

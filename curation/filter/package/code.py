"""Checks of the code that a package names, which must be registered here or allowed by the user.

A package may come from a stranger, so names are checked before anything is imported for them.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from curation.arms import TRUST, Fitted
from curation.config.defaults import ENTRY_POINTS
from curation.errors import PackageError
from curation.registry import BACKENDS, DOMAINS, find_installed


def refuse_code(uri: str, description: object, allowed: Collection[str]) -> None:
    """Refuse a description, as ``package.json`` has it, that names code which is neither registered nor allowed."""
    if not isinstance(description, Mapping):
        return  # which the schema refuses
    domain = description.get("domain")
    names = [*_iter_domains(domain)]
    for key in ("ask", "bought"):
        if isinstance(asked := description.get(key), Mapping):
            names.append((f"{key}.backend", asked.get("backend"), BACKENDS.names))
    names.append(("trust", description.get("trust"), TRUST.names))
    for key, name, registered in names:
        if isinstance(name, str) and name not in registered and name not in allowed:
            raise _make_unknown_error(uri, key, name)
    if (command := _find_command(domain)) is not None:
        raise PackageError(
            f"{uri}: its domain brings a command to check answers, {command!r}, and a package never brings one; "
            "nothing of it was run. Export it again with this version, which leaves it out"
        )


def refuse_maker(uri: str, name: object, allowed: Collection[str]) -> None:
    """Refuse a class, ``module:Class``, that no registered trust function is made by and that is not allowed."""
    brought = (TRUST.find(kind) for group in TRUST.groups for kind in find_installed(group))
    known = itertools.chain((TRUST[kind] for kind in TRUST), brought)
    if name not in allowed and not any(isinstance(trust, Fitted) and trust.made_by == name for trust in known):
        raise _make_unknown_error(uri, "made_by", name)


def _iter_domains(value: object) -> Iterator[tuple[str, object, Collection[str]]]:
    """Yield the names of a domain and of the domains that it wraps, such as ``next_token``'s."""
    name = value.get("name") if isinstance(value, Mapping) else value
    yield "domain", name, DOMAINS.keys() | find_installed(ENTRY_POINTS).keys()
    if isinstance(value, Mapping):
        yield from _iter_domains(value.get("of"))


def _find_command(domain: object) -> Any:
    """Return the command that a domain, or a domain that it wraps, configures as its check; None without one."""
    parts: Iterable[object] = domain if isinstance(domain, list) else ()
    if isinstance(domain, Mapping):
        check, parts = domain.get("check"), domain.values()
        if isinstance(check, Mapping) and "command" in check:
            return check["command"]
    return next((found for part in parts if (found := _find_command(part)) is not None), None)


def _make_unknown_error(uri: str, key: str, name: object) -> PackageError:
    return PackageError(
        f"{uri}: names {name!r} as {key}, which neither this version nor an installed package registers; nothing of it "
        f"was imported. Install the package that brings it or, if you have read that code, add --allow-code {name}"
    )

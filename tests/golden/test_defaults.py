"""Test of the configuration's defaults: no cache key holds a default, so a changed default needs a new revision.

``python -m tests.golden.test_defaults`` writes the record again, once the stages that read a changed default have
another ``revision``.
"""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from curation import config, extras
from curation.config.base import Section
from curation.config.filter import CoreFilterConfig
from curation.config.run import CoreConfig, SelectionConfig

GOLDEN = Path(__file__).with_name("defaults.json")


def sections(of: type[Section] = Section) -> Iterator[type[Section]]:
    for section in of.__subclasses__():
        is_part = section in (CoreConfig, CoreFilterConfig, *SelectionConfig.__mro__[1:])  # features extend these
        if section.__module__.startswith(("curation.config", "curation.extras")) and not is_part:
            yield section
        yield from sections(section)


def defaults() -> dict[str, Any]:
    for module in pkgutil.iter_modules(config.__path__, "curation.config."):
        importlib.import_module(module.name)
    for extra in pkgutil.iter_modules(extras.__path__, "curation.extras."):
        if find_spec(f"{extra.name}.config") is not None:
            importlib.import_module(f"{extra.name}.config")
    found: dict[str, Any] = {}
    for section in sections():
        for name, field in section.model_fields.items():
            if not field.is_required() and name not in section.RESOURCES:
                value = field.get_default(call_default_factory=True)
                found[f"{section.__name__}.{name}"] = value.to_key() if isinstance(value, Section) else value
    as_read: dict[str, Any] = json.loads(json.dumps(found, default=to_jsonable_python, sort_keys=True))
    return as_read


def test_no_default_changes_without_a_word() -> None:
    known, now = json.loads(GOLDEN.read_text()), defaults()
    changed = {name: (known[name], now[name]) for name in known.keys() & now.keys() if known[name] != now[name]}
    assert not changed, "raise the revision of each stage that reads it, and write the record again"
    assert known.keys() == now.keys(), "a new key with a default, or one less: write the record again"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(defaults(), indent=0, sort_keys=True) + "\n")

"""Types of JSON objects: records, rows, settings, the content of reports."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""An object of JSON, values of any type by name."""
JsonView = Mapping[str, Any]
"""A read-only object of JSON."""

"""The advice for a full object store, by the error and by those before it."""

import pytest
from ray.exceptions import ObjectStoreFullError

from curation.cluster import news


@pytest.mark.parametrize(
    ("is_named", "is_hidden", "is_found"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_the_errors_before_an_error_are_searched(is_named: bool, is_hidden: bool, is_found: bool):
    cause, error = ObjectStoreFullError("full"), ValueError("while it was handled")
    error.__context__, error.__cause__ = cause, cause if is_named else None
    error.__suppress_context__ = is_hidden
    advice = news.describe_full_store(error)
    assert (advice is not None and "RAY_object_spilling_directory" in advice) if is_found else advice is None

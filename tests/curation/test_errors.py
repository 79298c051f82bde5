import copy
import inspect
import pickle

import pytest

from curation import errors

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
USER_ERRORS = {
    "ConfigError",
    "SourceError",
    "ModelError",
    "StartError",
    "RunDirError",
    "DegenerateSourceError",
    "BudgetError",
    "ClusterError",
    "TableError",
    "CombineError",
    "ExportError",
    "PackageError",
    "ReviewError",
}


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_the_tree_has_one_root_and_is_looked_at_whole():
    def below(cls: type) -> set[type]:
        return {cls}.union(*(below(child) for child in cls.__subclasses__()))

    assert set(CLASSES) == {cls for cls in below(errors.CurationError) if cls.__module__ == "curation.errors"}
    assert len(CLASSES) > 8


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_with_class_message_and_cause(cls: type[Exception], protocol: int):
    message = 'f.yaml: selection.budget.n: -5: é "quoted",\nand a second line'
    error = raised(cls(message))
    error.add_note("on worker 3")
    other = pickle.loads(pickle.dumps(error, protocol=protocol))
    assert type(other) is cls and str(other) == message and other.args == (message,)
    assert other.__notes__ == ["on worker 3"]
    assert type(copy.deepcopy(error)) is cls


def test_users_mistakes_are_value_errors_and_nothing_else_is():
    for cls in CLASSES:
        is_user_error = cls.__name__ in USER_ERRORS | {"UserError"}
        assert issubclass(cls, errors.UserError) == is_user_error
        assert issubclass(cls, ValueError) == is_user_error


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("bad_fen: '8/8' (expected 8 rows: found 2)", "bad_fen"),
        ("null_field: moves is empty", "null_field"),
        ("bare", "bare"),
        ("", ""),
    ],
)
def test_kind_of_a_row_error(message: str, kind: str):
    error = pickle.loads(pickle.dumps(errors.RowError(message)))
    assert error.kind == kind and str(error) == message

"""Numbers of states beyond the type in which they are stored."""

import numpy as np
import pyarrow as pa
import pytest

from curation.teachers.completions import AnsweredRow, clip_states, completion_batch, count_clipped, prompt_batch

WIDE_4D = np.array(
    [[1.0, -2.5, 65504.0], [65505.0, -1e9, 0.5], [np.inf, 1e9, 0.0], [np.nan, 1e9, 0.0]], dtype=np.float32
)


def test_finite_numbers_are_clipped_and_others_kept():
    found = clip_states(WIDE_4D, "float16")
    assert found.dtype == np.float16
    expected = [[1.0, -2.5, 65504.0], [65504.0, -65504.0, 0.5], [np.inf, 65504.0, 0.0], [np.nan, 65504.0, 0.0]]
    np.testing.assert_array_equal(found, np.array(expected, dtype=np.float16))
    np.testing.assert_array_equal(clip_states(WIDE_4D, "float32"), WIDE_4D)


@pytest.mark.parametrize(("state_dtype", "expected"), [("float16", 1 + 2), ("float32", 0)])
def test_clipped_numbers_of_rows_without_error_are_counted(state_dtype, expected):
    """The number that is float16's largest by itself counts too: in a stored state nothing tells them apart."""
    batch = completion_batch(
        [AnsweredRow(row_id) for row_id in range(4)], states={"output_last": WIDE_4D}, state_dtype=state_dtype
    )
    errors = batch.column("error").to_pylist()
    assert errors[:2] == [None, None]
    assert "holds inf" in errors[2] and "holds nan" in errors[3]
    assert [state is None for state in batch.column("state_output_last").to_pylist()] == [False, False, True, True]
    assert count_clipped(pa.Table.from_batches([batch])) == expected
    assert count_clipped(pa.Table.from_batches([batch, batch])) == 2 * expected
    assert count_clipped(pa.Table.from_batches([batch.slice(1, 1)])) == (2 if expected else 0)


def test_a_gate_reads_states_as_they_are_stored():
    batch = prompt_batch(range(4), [1] * 4, {"prompt_last": WIDE_4D}, "float16")
    found = batch.column("state_prompt_last").to_pylist()
    assert found[1:] == [[65504.0, -65504.0, 0.5], None, None]

"""JSON made by columns is what ``json.dumps`` makes of each row."""

import datetime
import json

import pyarrow as pa

from curation.refs import ListDigest, fingerprint
from curation.tables import json_text

COLUMNS = {
    "row_id": pa.array([5 << 40, -1, None], pa.int64()),
    'per %s "cent"': pa.array(['a"\\\n\x00', "é 😀 %s", None]),
    "trust": pa.array([0.1, 1e-30, None], pa.float32()),
    "wide": pa.array([1 / 3, 1e22, -0.0], pa.float64()),
    "generation": pa.array([0, 1, 2], pa.int32()),
}


def test_objects_are_those_of_dumps() -> None:
    table = pa.table(COLUMNS)
    texts = {name: json_text.encode_values(table[name]) for name in table.column_names}
    assert json_text.encode_objects(texts) == [json.dumps(row) for row in table.to_pylist()]
    assert json_text.encode_objects({name: values[:0] for name, values in texts.items()}) == []


def test_other_types_are_texts_and_what_is_no_number_is_null() -> None:
    day = pa.array([datetime.date(2026, 1, 2), None])
    assert json_text.encode_values(pa.chunked_array([day])) == ['"2026-01-02"', "null"]
    assert json_text.encode_values(pa.chunked_array([[True, None]])) == ["true", "null"]
    assert json_text.encode_values(pa.chunked_array([[float("nan"), float("inf"), 0.5]])) == ["null", "null", "0.5"]


def test_a_digest_takes_texts() -> None:
    items = [{"completion": "é\n", "row_id": 5}, {"completion": None, "row_id": -1}, {"completion": "", "row_id": 0}]
    texts = [json.dumps(item, sort_keys=True, separators=(",", ":")) for item in items]
    digest = ListDigest()
    for part in (texts[:1], [], texts[1:]):
        digest.extend_texts(part)
    assert digest.hexdigest == fingerprint(items) and digest.num_items == 3

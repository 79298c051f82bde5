"""The bench of calibration: its two choices are those of a teacher that is asked with it, and of one without."""

import math
import string
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tiny_shape import LONG

from benchmarks.content_free import Chosen, chosen, domain_of, lines, rows_of
from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.domains import get_domain
from curation.models import create
from curation.refs import ModelRef
from curation.signals import label_request
from curation.teachers import load_teacher
from curation.teachers.wrapped import WrappedTeacher

SHAPE = LONG | {"initializer_range": 0.3}


def test_each_choice_is_that_of_a_teacher_which_is_asked_so(tmp_path: Path) -> None:
    data = tmp_path / "data" / "classification"
    data.mkdir(parents=True)
    labels = [("late", "lost_card", "fee")[n % 3] for n in range(40)]
    pq.write_table(
        pa.table({"text": [f"text {n * 7919}" for n in range(40)], "label": labels}), data / "banking77_a.parquet"
    )
    create(tmp_path / "m", family="qwen3", shape=SHAPE, words=tuple(string.printable), pattern=r"[\s\S]", seed=3)
    teacher = load_teacher(AskConfig(states=("output_last",)), ModelRef(base=str(tmp_path / "m")))

    rows, classes = rows_of("banking77", tmp_path / "data", 30, seed=0)
    assert classes == ["fee", "late", "lost_card"] and len({row["text"] for row in rows}) == 30
    found = chosen(teacher, domain_of(classes, "The customer asks about:"), rows)

    def asked(calibrate: str) -> list[str | None]:
        words = {"fee": "fee", "late": "late", "lost_card": "lost card"}
        options = {"classes": words, "cue": "The customer asks about:", "calibrate": calibrate}
        domain = get_domain(DomainConfig.model_validate({"name": "classification", **options}))
        requests = [label_request(domain, place, {"text": row["text"]}) for place, row in enumerate(rows)]
        batches = WrappedTeacher(teacher).label(requests, DecodingConfig(), seed=0)
        answers = {row["row_id"]: row["completion"] for batch in batches for row in batch.to_pylist()}
        return [domain.parse(answers[place], {"text": row["text"]}) for place, row in enumerate(rows)]

    assert found.gold == [row["label"] for row in rows]
    assert found.calibrated == asked("content_free") and found.plain == asked("none")
    assert found.calibrated != found.plain


def test_the_lines_count_what_is_right_and_what_is_given() -> None:
    gold = ["a", "b"] * 10
    found = list(lines(Chosen(gold, gold[:15] + ["c"] * 5, ["a"] * 20)))
    assert (
        found[0].startswith("calibrated: 75.0 % right (")
        and "classes given: 3, the most frequent to 40.0 %" in found[0]
    )
    assert (
        found[1].startswith("not calibrated: 50.0 % right (")
        and "classes given: 1, the most frequent to 100" in found[1]
    )
    gained, lost = 7, 2  # the b of the first 15, the a of the last five
    p = 2 * sum(math.comb(9, k) for k in range(lost + 1)) / 2**9
    assert found[3] == f"right by calibration alone {gained}, without it alone {lost}: p = {p:.2g}"

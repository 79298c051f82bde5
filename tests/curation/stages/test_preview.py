"""What `curate validate` foresees of rows that cannot be used, compared with a count of all of them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation.config import RunConfig
from curation.errors import SourceError
from curation.sources import discover, make_assignment
from curation.stages.preview import check_preview, preview


def config(folder: Path, num_rows: int, *, bad: float = 0.0, gold: bool = True, **splits: Any) -> RunConfig:
    """Questions of which a share has duplicate options, at random places."""
    is_bad_N = np.random.default_rng(0).random(num_rows) < bad
    rows = [
        {"question": f"Number {n}?", "choices": ["a", "a" if is_bad else "b"], "answer": 0 if gold else None}
        for n, is_bad in enumerate(is_bad_N.tolist())
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return RunConfig.model_validate(
        {
            "name": "looked",
            "run_dir": str(folder / "run"),
            "domain": "mcqa",
            "sources": {"questions": {"path": str(folder / "questions.jsonl")}},
            "splits": {"source": {"from": "questions", "rows": num_rows // 4}, "pool": {"from": "questions"}} | splits,
            "teacher": {"backend": "scripted"},
            "selection": {"budget": {"n": 1}, "arms": ["naive"]},
        }
    )


def looked(settings: RunConfig) -> list[str]:
    files = {name: discover(source) for name, source in settings.sources.items()}
    return list(check_preview(preview(settings, files), settings))


def test_a_small_source_is_counted_whole_as_it_will_be_dealt(tmp_path: Path) -> None:
    settings = config(tmp_path, 400, bad=0.03)
    files = {name: discover(source) for name, source in settings.sources.items()}
    lines = (tmp_path / "questions.jsonl").read_text().splitlines()
    bad_N = np.array([len(set(json.loads(line)["choices"])) == 1 for line in lines])
    assignment = make_assignment(settings, "questions", files["questions"])
    split_N = assignment.split_of(np.arange(400))
    for place, (name, size) in enumerate(assignment.counts.items()):
        found = preview(settings, files)[name]
        assert (found.rows, found.size) == (size, size)
        assert found.errors == Counter(duplicate_options=int(bad_N[split_N == place].sum()))


@pytest.mark.long
def test_a_share_above_the_limit_is_refused_and_one_below_is_told(tmp_path: Path) -> None:
    (line,) = [line for line in looked(config(tmp_path, 20_000, bad=0.03)) if "splits.pool" in line]
    assert "of 20,000" not in line and "cannot be used (duplicate_options " in line and " % to " not in line
    with pytest.raises(SourceError, match=r"cannot be used \(duplicate_options .*more than splits.max_error_rate 0.05"):
        looked(config(tmp_path, 20_000, bad=0.2))
    assert looked(config(tmp_path, 20_000, bad=0.2, max_error_rate=0.5))
    assert looked(config(tmp_path, 20_000)) == []


@pytest.mark.parametrize("ids, told", [
    ([-1, 2], "the id -1 is negative"), ([1, None], "1 rows have no id"), ([1, "x"], "not integers|not all integers"),
])  # fmt: skip
def test_ids_that_cannot_be_used_are_foreseen(tmp_path: Path, ids: list[Any], told: str) -> None:
    settings = config(tmp_path, 8)
    rows = map(json.loads, (tmp_path / "questions.jsonl").read_text().splitlines())
    lines = [json.dumps({**row, "id": own}) for row, own in zip(rows, [*range(10, 16), *ids], strict=True)]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    source = settings.sources["questions"].model_copy(update={"id_column": "id"})
    with pytest.raises(SourceError, match=told):
        looked(settings.model_copy(update={"sources": {"questions": source}}))


def test_the_first_row_of_each_kind_is_shown_with_its_values_and_the_domains_own_sentence(tmp_path: Path) -> None:
    settings = config(tmp_path, 8)
    path = tmp_path / "questions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps({**row, "answer": "Z"}) for row in rows))
    with pytest.raises(SourceError) as refused:
        looked(settings)
    told = str(refused.value)
    assert f"of {path}: bad_answer: 'Z' names none of" in told and "answer: 'Z'" in told
    path.write_text("\n".join(json.dumps({"question": row["question"], "choices": row["choices"]}) for row in rows))
    with pytest.raises(SourceError) as refused:
        looked(settings)
    told = str(refused.value)
    assert "no_gold" in told and "looked for in" in told and "answer, which the row does not have" in told, told


def test_the_nearest_column_to_that_of_a_missing_label_is_named(tmp_path: Path) -> None:
    settings = config(tmp_path, 8)
    path = tmp_path / "questions.jsonl"
    path.write_text(path.read_text().replace('"answer"', '"Answers"'))
    with pytest.raises(SourceError, match=r"answer, which the row does not have; did you mean 'Answers'\? Rename it"):
        looked(settings)
    path.write_text(path.read_text().replace('"Answers"', '"truth"'))
    with pytest.raises(SourceError, match="answer, which the row does not have; rename or add it"):
        looked(settings)


def test_a_wrong_capitalisation_of_all_labels_is_refused_with_value_and_classes(tmp_path: Path) -> None:
    settings = config(tmp_path, 8)
    (tmp_path / "questions.jsonl").write_text("\n".join(f'{{"text": "t {n}", "label": "Spam"}}' for n in range(8)))
    domain = type(settings.domain).model_validate({"name": "classification", "classes": ["spam", "ham"]})
    told = r"row \d of .*: bad_label: 'Spam' is not one of the 2 classes spam, ham .*label: 'Spam'"
    with pytest.raises(SourceError, match=told):
        looked(settings.model_copy(update={"domain": domain}))

"""The real tasks of the bench: multiple choice and classification, a set a configuration.

The rows are public data sets as they are found in a folder of Parquet files (``--data``): ``mcqa/*.parquet`` with
``question``, ``choices`` and ``answer``, ``classification/*.parquet`` with ``text`` and ``label``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from curation.config import RunConfig
from curation.domains import Domain, Example

STATES = ("prompt_last", "output_mean", "output_last", "layer12_prompt_last", "layer12_output_last")
"""The states that are kept: three of the last layer, two of a layer at two thirds of the model's depth."""
SOURCE_ROWS = 1_200
POOL_ROWS = 1_500


class Classes(Domain):
    """Short texts, each of one of a few fixed classes, whose names are scored as completions of the prompt.

    Args:
        labels: the classes; an underscore is a space in the prompt's completion.
        cue: the last line of the prompt, which a class completes.
    """

    def __init__(self, *, labels: Sequence[str], cue: str) -> None:
        self._completions = {label: f" {label.replace('_', ' ')}" for label in labels}
        self._cue = cue

    def question(self, example: Example) -> str:
        """Return the text and the cue."""
        return f"Text: {example['text']}\n{self._cue}"

    def options(self, example: Example) -> tuple[str, ...]:
        """Return every class."""
        return tuple(self._completions.values())

    def closed_labels(self) -> tuple[str, ...]:
        """Return the classes."""
        return tuple(self._completions)

    def answer(self, label: str, example: Example) -> str:
        """Return the class's completion."""
        return self._completions[label]

    def parse(self, completion: str, example: Example) -> str | None:
        """Return the class that equals the completion."""
        return next((label for label, text in self._completions.items() if text.strip() == completion.strip()), None)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A set of the bench."""

    files: str
    """A glob in the folder of the data."""
    cue: str | None = None
    """Of a classification; unset, multiple choice."""
    source_rows: int = SOURCE_ROWS
    pool_rows: int = POOL_ROWS
    num_classes: int | None = None
    """Of a classification, only rows of the first so many classes in alphabetical order; unset, all."""


TASKS: Mapping[str, Task] = {
    "sciq": Task(files="mcqa/sciq_train.parquet", source_rows=1_500, pool_rows=3_500),
    "arc_easy": Task(files="mcqa/arc_easy_*.parquet"),
    "arc_challenge": Task(files="mcqa/arc_challenge_*.parquet", source_rows=1_000),
    "openbookqa": Task(files="mcqa/openbookqa_*.parquet"),
    "socialiqa": Task(files="mcqa/socialiqa_train.parquet"),
    "mmlu": Task(files="mcqa/mmlu_test.parquet"),
    "banking77": Task(files="classification/banking77_*.parquet", cue="The customer asks about:", num_classes=24),
    "irony": Task(files="classification/tweeteval_irony_*.parquet", cue="This tweet is meant as"),
}


def rows_of(name: str, data: Path, directory: Path) -> tuple[Path, list[str]]:
    """Return the files of a set's rows, and a classification's classes, whose rows are copied without the others."""
    task = TASKS[name]
    if task.cue is None:
        return data / task.files, []
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = pa.concat_tables(pq.read_table(file) for file in sorted(data.glob(task.files)))
    labels = sorted(pc.unique(rows["label"]).to_pylist())[: task.num_classes]
    directory.mkdir(parents=True, exist_ok=True)
    copy = directory / f"{name}.parquet"
    if not copy.exists():
        pq.write_table(rows.filter(pc.is_in(rows["label"], pa.array(labels))), copy)
    return copy, labels


def configuration(name: str, data: Path, model: Path, directory: Path, *, dtype: str) -> RunConfig:
    """Return the run that labels the rows of a set; it trains no student.

    ``dtype`` is the teacher's: a processor without bfloat16 takes six times as long with it, one that has it half.
    """
    task = TASKS[name]
    files, labels = rows_of(name, data, directory)
    domain: dict[str, Any] = {"name": "mcqa", "option_style": "texts"}
    if labels:
        domain = {"name": f"{__name__}:Classes", "labels": labels, "cue": task.cue}
    return RunConfig.model_validate(
        {
            "name": f"real-{name}",
            "run_dir": str(directory / name),
            "domain": domain,
            "sources": {"rows": {"path": str(files), "mixed": True}},  # the splits of a data set are one here
            "splits": {
                "source": {"from": "rows", "rows": task.source_rows},
                "pool": {"from": "rows", "rows": task.pool_rows},
                "overlap": "drop",
                "audit": True,
            },
            "teacher": {
                "model": {"path": str(model)},
                "dtype": dtype,
                "states": list(STATES),
                "token_logprobs": 16,
                "chunk_rows": 128,
                "actors": {"min": 2, "max": 2},
            },
            "trust": {"states": list(STATES[:3])},
            "selection": {"budget": {"share": 0.25}, "arms": ["naive", "internal_confidence"]},
        }
    )

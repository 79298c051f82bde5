"""A stage as a class: its fields are its key, its outputs are read by their types, its work sees values."""

import pickle
from typing import Any, NamedTuple

import pytest

from curation.config import SftConfig
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Done, In, InEach, Inputs, Merged, Stage, make_cache_key, order_stages, setting
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run

TABLE = TableRef(uri="labels", version=3)


class Label(Stage):
    class Made(NamedTuple):
        labels: TableRef
        tables: dict[str, TableRef]
        model: ModelRef | None
        counts: dict[str, int]

    recipe: SftConfig
    seed: int
    speed: int = setting(default=1)

    def run(self, task: Any) -> Done:
        return Done(outputs=self.Made(TABLE, {"pool": TABLE}, None, {"rows": self.seed}), rows=1)


class Choice(Inputs):
    labels: In[TableRef]
    n: int


class Select(Stage):
    class Made(NamedTuple):
        seen: list[Any]

    choice: Choice
    tables: InEach[TableRef]
    model: In[ModelRef | None]
    revision: int = 2

    def run(self, task: Any) -> Done:
        assert self.choice.labels == self.tables["a"] == TABLE and self.model is None
        assert pickle.loads(pickle.dumps(self)).choice.labels == TABLE  # tasks of Ray are given it
        return Done(outputs=self.Made([self.choice.labels, self.choice.n]), rows=1)


def graph(*, seed: int = 7, speed: int = 1, cpus: int = 1) -> Select:
    label = Label(name="label", recipe=SftConfig(cpus_per_worker=cpus), seed=seed, speed=speed)
    choice = Choice(labels=label.out("labels"), n=2)
    return Select(
        name="select", choice=choice, tables={"a": label.out("tables", "pool")}, model=label.out("model").or_none
    )


def test_the_work_sees_what_other_stages_made(tmp_path: Any) -> None:
    known = Run("test", Manifest.load(tmp_path), room=dict).do(order_stages([graph().value()]))
    assert known["select"] == {"seen": [TABLE.to_json(), 2]}
    (_, record) = Manifest.load(tmp_path).stages.values()
    table = TABLE.to_json()
    assert record.inputs == {"revision": 2, "choice": {"labels": table, "n": 2}, "tables": {"a": table}, "model": None}


def test_settings_and_resources_are_no_part_of_the_key() -> None:
    key, *others = (
        make_cache_key(graph(**how).choice.labels.stage, {}) for how in ({}, {"speed": 2}, {"cpus": 4}, {"seed": 8})
    )  # type: ignore[attr-defined]
    assert key == others[0] == others[1] != others[2]
    assert key.keys() == {"revision", "recipe", "seed"}


def test_an_output_that_is_not_made_cannot_be_taken() -> None:
    with pytest.raises(KeyError, match="labelz"):
        graph().choice.labels.stage.out("labelz")  # type: ignore[attr-defined]


def test_equal_stages_of_two_graphs_are_merged() -> None:
    merged = Merged()
    first, second, other = (merged.stage(graph(**how)) for how in ({}, {"speed": 2}, {"seed": 8}))
    assert first is second is not other and first.name.startswith("select@")

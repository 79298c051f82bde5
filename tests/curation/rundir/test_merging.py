"""Graphs merged into one: equal stages once, unlike ones apart, whatever they were called."""

from dataclasses import replace

from built import Built

from curation.refs import ModelRef
from curation.rundir.graph import Done, In, Merged, Stage, order_stages
from curation.rundir.hosts import Host


def work(task, **inputs):
    return Done(outputs={}, rows=0)


def other_work(task, **inputs):
    return Done(outputs={}, rows=0)


def graph(*, states, learning_rate, settings=0):
    """Labels, a fit on them, and scores of the fit."""
    labels = Built(name="gen-0/label", work=work, inputs={"states": states}, settings={"speed": settings})
    fit = Built(name="gen-0/trust", work=work, inputs={"labels": labels.table("labels"), "rate": learning_rate})
    return Built(
        name="gen-0/score", work=work, inputs={"labels": labels.table("labels"), "trust": [fit.value("trust")]}
    )


def names(stages):
    return [stage.name.partition("@")[0] for stage in stages]


def test_stages_with_equal_inputs_are_one_and_the_others_have_names_of_their_own():
    merged = Merged()
    ends = [merged.stage(graph(states=["a"], learning_rate=rate, settings=rate)) for rate in (1, 2, 1)]
    stages = order_stages([end.value() for end in ends])
    assert sorted(names(stages)) == ["gen-0/label", *["gen-0/score"] * 2, *["gen-0/trust"] * 2]
    assert ends[0] is ends[2] and ends[0] is not ends[1]
    assert len({stage.name for stage in stages}) == 5
    again = [merged.stage(graph(states=["b"], learning_rate=1)), *ends]
    assert sorted(names(order_stages([end.value() for end in again]))).count("gen-0/label") == 2


def test_names_do_not_depend_on_what_was_merged_before():
    alone, together = Merged(), Merged()
    together.stage(graph(states=["b"], learning_rate=7))
    one, other = (merged.stage(graph(states=["a"], learning_rate=1)) for merged in (alone, together))
    assert one.name == other.name and one is not other


def test_other_work_another_revision_and_other_needs_are_other_stages():
    stage = graph(states=["a"], learning_rate=1)
    before = Built(name="before", work=work, inputs={})
    changed = [replace(stage, work=other_work), replace(stage, revision=2), replace(stage, needs=(before.value(),))]
    merged = Merged()
    assert len({merged.stage(each).name for each in (stage, *changed)}) == 4


class Label(Stage):
    model: In[ModelRef]

    @property
    def host(self):
        return Host(name=str(self.model), kind="actors", shared=True)


def test_models_of_stages_that_had_one_name_have_hosts_of_their_own():
    def asked(seed):
        model = Built(name="gen-0/teacher", work=work, inputs={"seed": seed}).value("model")
        return Label(name="gen-0/label", model=model)

    merged = Merged()
    first, second, again = (merged.stage(asked(seed)).host for seed in (0, 1, 0))
    assert first == again and first.name != second.name and first.kind == second.kind == "actors"

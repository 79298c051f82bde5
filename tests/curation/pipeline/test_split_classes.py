"""Classes that a configuration leaves out: those of the labelled split, in the keys; refused where there are none."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from built import saved_run

from curation.commands.validate import check
from curation.config import RunConfig
from curation.config.load import load_config
from curation.domains import get_domain
from curation.domains.classification import Classification
from curation.errors import ConfigError, SourceError
from curation.pipeline.opened import MOST_CLASSES, open_run, with_split_classes
from curation.rundir.graph import to_plain_json, with_outs


def configured(folder: Path, labels: list[str], name: str = "run", test: str = "", **domain: Any) -> RunConfig:
    """A run whose labelled split is a file of these labels; ``test``: labels of a test split, a letter each."""
    (folder / f"{name}.csv").write_text("text,label\n" + "".join(f"t{at},{label}\n" for at, label in enumerate(labels)))
    (folder / "pool.csv").write_text("text\n" + "".join(f"p{row}\n" for row in range(8)))
    sources = {"labelled": {"path": f"{name}.csv"}, "unlabelled": {"path": "pool.csv"}}
    splits: dict[str, Any] = {"source": {"from": "labelled"}, "pool": {"from": "unlabelled"}}
    if test:
        rows = "".join(f"q{at},{label}\n" for at, label in enumerate(test))
        (folder / "test.csv").write_text(f"text,label\n{rows}")
        sources["test"], splits["test"] = {"path": "test.csv"}, {"from": "test"}
    path = folder / f"{name}.yaml"
    config = {
        "name": name,
        "run_dir": str(folder / "runs" / name),
        "domain": {"name": "classification", **domain},
        "sources": sources,
        "splits": splits,
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 2}},
    }
    path.write_text(yaml.safe_dump(config))
    return load_config(path)


def keys(config: RunConfig) -> dict[str, Any]:
    stages = open_run(config).stages
    return {stage.name: to_plain_json(with_outs(dict(stage.inputs), str), {}) for stage in stages}


def test_the_labels_of_the_split_are_the_classes_and_in_the_keys(tmp_path: Path):
    config = configured(tmp_path, ["b", "c", "a", "", "b"])
    given = configured(tmp_path, ["b", "c", "a", "", "b"], classes=["a", "b", "c"])
    assert "classes" not in config.domain.options
    assert keys(config) == keys(given)
    more = configured(tmp_path, ["b", "c", "a", "d", "b"], name="more")
    assert keys(more)["gen-0/label-pool"]["domain"]["classes"] == ["a", "b", "c", "d"]
    assert keys(more)["gen-0/label-pool"] != keys(config)["gen-0/label-pool"]


def test_underscores_of_labels_are_spaces_in_the_words_that_are_scored(tmp_path: Path):
    config = with_split_classes(configured(tmp_path, ["card_arrival", "fee", "card_arrival"]))
    assert config.domain.options["classes"] == {"card_arrival": "card arrival", "fee": "fee"}
    domain = get_domain(config.domain)
    assert domain.options({"text": "t"}) == (" card arrival", " fee")
    assert domain.parse(" card arrival", {"text": "t"}) == "card_arrival"
    saved_run(config)
    (tmp_path / "run.csv").write_text("text,label\nt0,c\nt1,d\n")
    begun = config.model_copy(update={"domain": config.domain.with_options(classes=None)})
    assert with_split_classes(begun).domain == config.domain, "as the run began"
    same = with_split_classes(configured(tmp_path, ["card_fee", "card fee", "_"], name="same"))
    assert same.domain.options["classes"] == ["_", "card fee", "card_fee"], "their words would be the same"


def test_only_rows_of_the_labelled_split_count(tmp_path: Path):
    labels = ["a", "b"] * 10 + [f"rare {row}" for row in range(20)]
    config = configured(tmp_path, labels)
    splits = {**config.splits.model_dump(by_alias=True), "source": {"from": "labelled", "rows": 20}}
    part = config.model_copy(update={"splits": type(config.splits).model_validate(splits)})
    found, whole = (with_split_classes(one).domain.options["classes"] for one in (part, config))
    assert set(found) < set(whole) and len(whole) == 22 and found == sorted(found)


def test_a_begun_run_keeps_its_classes_without_reading_the_rows_again(tmp_path: Path):
    config = configured(tmp_path, ["b", "a"])
    opened = saved_run(config)
    assert yaml.safe_load((tmp_path / "runs" / "run" / "config.yaml").read_text())["domain"]["classes"] == ["a", "b"]
    (tmp_path / "run.csv").write_text("text,label\nt0,c\nt1,d\n")
    assert with_split_classes(config) == opened.config
    other = config.model_copy(update={"domain": config.domain.with_options(cue="Kind:")})  # another question
    assert with_split_classes(other).domain.options["classes"] == ["c", "d"]


def test_a_label_that_the_labelled_split_lacks_is_named_before_anything_runs(tmp_path: Path):
    config = configured(tmp_path, ["a", "b"] * 4, test="abz")
    told = "bad_label: 'z' is not one of the 2 classes a, b (domain.classes, or the labels of the labelled split)"
    with pytest.raises(SourceError, match=f"splits.test: .*{re.escape(told)}.*label: 'z'"):
        list(check(config))


def test_what_holds_no_classes_is_refused(tmp_path: Path):
    def refused(labels: list[str], **domain: Any) -> str:
        with pytest.raises((ConfigError, SourceError)) as caught:
            list(check(configured(tmp_path, labels, **domain)))
        return str(caught.value)

    assert "splits.source has one label alone, 'a'; at least two are needed" in refused(["a", "a"])
    assert "splits.source has no label; at least two are needed" in refused(["", ""])
    many = [f"text {row}" for row in range(MOST_CLASSES + 1)]
    assert "splits.source has more than 1,000 different labels ('text 0', 'text 1'" in refused(many)
    assert "'Ham' and 'ham' are the same but for case" in refused(["ham", "Ham"])
    assert "has no column 'lable', whose labels would be the classes; did you mean 'label'?" in refused(
        ["a", "b"], label="lable"
    )
    with pytest.raises(ConfigError, match="classes: are left out, which only a run may do"):
        Classification()
    list(check(configured(tmp_path, many[:-1], name="most")))


def test_the_classes_reach_sources_with_a_domain_of_their_own(tmp_path: Path):
    config = configured(tmp_path, ["a", "b"], test="ab")
    own = config.domain.with_options(cue="Kind:")
    sources = {**config.sources, "test": config.sources["test"].model_copy(update={"domain": own})}
    found = with_split_classes(config.model_copy(update={"sources": sources}))
    assert get_domain(found.domain_of("test")).closed_labels() == ("a", "b")
    listed = config.domain.with_options(classes=["a", "b"])
    sources = {**config.sources, "labelled": config.sources["labelled"].model_copy(update={"domain": listed})}
    with pytest.raises(ConfigError, match="read by another domain with classes of its own"):
        with_split_classes(config.model_copy(update={"sources": sources}))

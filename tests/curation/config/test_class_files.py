"""Classes of a classification in a file, CSV or JSON lines, with words and descriptions."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curation.config.load import as_config, load_config
from curation.domains import get_domain
from curation.errors import ConfigError
from curation.pipeline.chain import describe
from curation.rundir.graph import to_plain_json, with_outs
from curation.sources import discover

RUN = {
    "name": "classes",
    "sources": {"rows": {"path": "rows.csv"}},
    "splits": {"source": {"from": "rows", "rows": 4}, "pool": {"from": "rows", "rows": 4}},
    "teacher": {"backend": "scripted"},
    "selection": {"budget": {"n": 2}},
}


def load(folder: Path, classes: object, name: str = "run.yaml", **domain: Any):
    (folder / "rows.csv").write_text("text,label\n" + "".join(f"t{row},{'ab'[row % 2]}\n" for row in range(8)))
    path = folder / name
    config = {**RUN, "domain": {"name": "classification", "classes": classes, **domain}}
    path.write_text(yaml.safe_dump(config))
    return load_config(path)


def test_labels_words_and_descriptions_of_both_kinds_of_files(tmp_path: Path):
    rows = [{"label": 1, "words": "a bug report", "description": "Something\nis broken."}, {"label": 2.0}]
    (tmp_path / "kinds.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "kinds.csv").write_bytes(
        b'\xef\xbb\xbflabel,words,description\r\n1,a bug report,"Something\r\nis broken."\r\n2,,\r\n'
    )
    for name in ("kinds.jsonl", "kinds.csv"):
        config = load(tmp_path, name).domain
        assert config.options["classes"] == {"1": "a bug report", "2": "2"}
        domain = get_domain(config)
        assert domain.closed_labels() == ("1", "2") and domain.options({"text": "x"}) == (" a bug report", " 2")
        told = "a bug report: Something is broken.\n2\n\nText: x\nLabel:"
        assert domain.prompt({"text": "x"}) == told
    (tmp_path / "spaced.csv").write_text('label, words,\n1, "a bug, report",\n2, ok,\n')
    assert load(tmp_path, "spaced.csv").domain.options["classes"] == {"1": "a bug, report", "2": "ok"}
    own = {"classes": {"1": "a bug report", "2": "2"}, "descriptions": {"1": "Something is broken."}}
    by_hand = load(tmp_path, own["classes"], descriptions=own["descriptions"], guidelines="Which?")
    assert get_domain(by_hand.domain).prompt({"text": "x"}) == f"Which?\n\n{told}"


def test_a_file_of_labelled_rows_gives_their_labels(tmp_path: Path):
    (tmp_path / "given.csv").write_text("text,kind\none,ham\ntwo,\nthree,spam\nfour,ham\n")
    config = load(tmp_path, "given.csv", label="kind")
    assert config.domain.options == {"classes": ["ham", "spam"], "label": "kind"}


def test_the_content_of_the_file_is_in_the_keys_and_its_name_is_not(tmp_path: Path):
    def keys(text: str, name: str) -> dict[str, Any]:
        (tmp_path / name).write_text(text)
        config = load(tmp_path, name)
        chain = describe(config, {key: discover(source) for key, source in config.sources.items()})
        return {stage.name: to_plain_json(with_outs(dict(stage.inputs), str), {}) for stage in chain.stages}

    first, other = keys("label\na\nb\n", "one.csv"), keys("label\na\nb\n", "two.csv")
    assert first["gen-0/label-pool"]["domain"] == other["gen-0/label-pool"]["domain"]
    changed = keys("label,description\na,the first\nb,\n", "one.csv")
    assert changed["gen-0/label-pool"]["domain"] != first["gen-0/label-pool"]["domain"]
    assert keys("label\na\nb\nc\n", "one.csv")["gen-0/label-pool"]["domain"]["classes"] == ["a", "b", "c"]


def test_the_file_lies_beside_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "kinds.csv").write_text("label\na\nb\n")
    load(tmp_path / "inner", "kinds.csv", name="base.yaml")
    (tmp_path / "top.yaml").write_text("base: inner/base.yaml\n")
    assert load_config(tmp_path / "top.yaml").domain.options["classes"] == ["a", "b"]
    changed = load_config(tmp_path / "top.yaml", ["domain.classes=[c, d]"])
    assert changed.domain.options["classes"] == ["c", "d"]
    sources = "sources:\n  own: {path: rows.csv, domain: {name: classification, classes: kinds.csv}}\n"
    (tmp_path / "inner" / "of_source.yaml").write_text("base: base.yaml\n" + sources)
    own = load_config(tmp_path / "inner" / "of_source.yaml").sources["own"].domain
    assert own is not None and own.options["classes"] == ["a", "b"]
    monkeypatch.chdir(tmp_path / "inner")
    given = {**RUN, "domain": {"name": "classification", "classes": "kinds.csv"}}
    assert as_config(given).domain.options["classes"] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("kinds.csv", None, "kinds.csv: cannot be read .*put the file there"),
        ("kinds.txt", "label\na\nb\n", "is neither .csv nor .jsonl"),
        ("kinds.csv", "lable\na\nb\n", r"has no column 'label' \(domain.label\); did you mean 'lable'"),
        ("kinds.csv", "", "there are no rows"),
        ("kinds.csv", "label\na\n", "holds 1 labels in column 'label'; give at least two classes"),
        ("kinds.csv", "label,words\n,x\nb,y\n", "line 2 has words or a description, but no label"),
        ("kinds.csv", "label,words\na,x\na,y\n", "line 3: 'a' has other words"),
        ("kinds.csv", "label\n" + "".join(f"{n}\n" for n in range(10_001)), "more than 10,000 different labels"),
        ("kinds.csv", 'label\n"a\n', "cannot be read as csv .*mend the file"),
        ("kinds.csv", "label,words\na,x,y\nb,z\n", "line 2 has more or fewer fields than the header"),
        ("kinds.csv", "label,words\na,x\nb\n", "line 3 has more or fewer fields than the header"),
        ("kinds.jsonl", '{"label": ["a"]}\n', "line 1 has a list or an object instead of a text"),
        ("kinds.jsonl", "[1]\n", "line 1 is not an object"),
        ("kinds.jsonl", "{1}\n", "cannot be read as jsonl"),
        ("kinds.csv", b"label\n\xff\xfe\n", "cannot be read as csv"),
    ],
)
def test_a_file_without_classes_is_refused(tmp_path: Path, name: str, text: str | bytes | None, words: str):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=rf"domain\.classes: .*{words}"):
        load(tmp_path, name)


def test_descriptions_in_two_places_and_of_no_class_are_refused(tmp_path: Path):
    (tmp_path / "kinds.csv").write_text("label,description\na,first\nb,second\nB,third\n")
    with pytest.raises(ConfigError, match=r"domain\.descriptions, too; keep them in one"):
        load(tmp_path, "kinds.csv", descriptions={"a": "x"})
    with pytest.raises(ConfigError, match="'b' and 'B' are the same but for case"):
        get_domain(load(tmp_path, "kinds.csv").domain)
    for descriptions, words in (({"bug": "x"}, "'bug' is none of the 2 classes; did you mean 'bugs'"), (["x"], "give")):
        with pytest.raises(ConfigError, match=f"descriptions: .*{words}"):
            get_domain(load(tmp_path, ["bugs", "wishes"], descriptions=descriptions).domain)


def test_white_space_within_labels_is_one_space_in_rows_as_in_files(tmp_path: Path):
    (tmp_path / "classes.csv").write_text('label\n"not   ironic"\nironic\n')
    for classes in ("classes.csv", ["not \t ironic", "ironic"]):
        domain = get_domain(load(tmp_path, classes).domain)
        assert domain.closed_labels() == ("not ironic", "ironic")
        assert domain.gold({"label": " not\n  ironic "}) == "not ironic" == domain.gold({"label": "not ironic"})
        assert domain.parse(domain.answer("not ironic", {}), {}) == "not ironic"

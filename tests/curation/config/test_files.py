"""Files that build on other files (``base``)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from curation.config.load import load_config
from curation.errors import ConfigError
from curation.extras.ablate.config import load as load_ablation

ALL: dict[str, Any] = {
    "name": "all",
    "sources": {"puzzles": {"path": "data/puzzles.parquet"}, "more": {"path": "data/more.parquet"}},
    "splits": {
        "source": {"from": "puzzles", "rows": 10},
        "test": {"from": "puzzles", "rows": 5},
        "pool": {"from": "more"},
    },
    "teacher": {"model": {"path": "weak"}, "decoding": {"max_tokens": 4, "stop": ["x", "y"]}},
    "selection": {"budget": {"n": 5}, "arms": ["naive", "trust"]},
    "generations": [{"student": {"path": "first"}}, {"student": {"path": "second"}}],
}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mappings_merge_and_other_values_replace(tmp_path: Path):
    write(tmp_path / "all.yaml", ALL)
    path = write(
        tmp_path / "own.yaml",
        {
            "base": "all.yaml",
            "name": "own",
            "teacher": {"decoding": {"stop": ["z"]}},
            "selection": {"budget": {"n": None, "share": 0.5}},
            "generations": [{"student": {"path": "other"}}],
        },
    )
    config = load_config(path, ["teacher.decoding.max_tokens=7"])
    assert config.name == "own" and config.selection.arms == ("naive", "trust")
    assert config.teacher.decoding.max_tokens == 7 and config.teacher.decoding.stop == ("z",)
    assert config.selection.budget.rule == "share"  # null takes a key away
    assert [generation.student.path for generation in config.generations] == ["other"]
    assert config == load_config(write(tmp_path / "flat.yaml", yaml.safe_load(flat(config))))


def flat(config: Any) -> str:
    """As the run directory keeps it."""
    return yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False)


def test_later_bases_win_over_earlier_ones_and_bases_have_bases(tmp_path: Path):
    write(tmp_path / "all.yaml", ALL)
    write(tmp_path / "a.yaml", {"base": "all.yaml", "seed": 1, "trust": {"width": 8}, "commit_seconds": 1})
    write(tmp_path / "b.yaml", {"seed": 2, "trust": {"kind": "neural", "depth": 3}})
    config = load_config(write(tmp_path / "own.yaml", {"base": ["a.yaml", "b.yaml"], "commit_seconds": 3}))
    assert (config.seed, config.trust.width, config.trust.depth, config.commit_seconds) == (2, 8, 3, 3)
    assert config.name == "all"


def test_a_path_is_relative_to_the_file_in_which_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("bases/weak", "bases/first", "second", "bases/second"):
        (tmp_path / folder).mkdir(parents=True)
    write(tmp_path / "bases" / "all.yaml", ALL)
    own = {"base": "bases/all.yaml", "sources": {"more": {"path": "mine.parquet"}}}
    monkeypatch.chdir(tmp_path)
    path = write(Path("own.yaml"), own)
    config = load_config(path)
    assert config.sources["puzzles"].path == str(tmp_path / "bases" / "data" / "puzzles.parquet")
    assert config.sources["more"].path == str(tmp_path / "mine.parquet")
    assert config.teacher.model is not None and config.teacher.model.path == str(tmp_path / "bases" / "weak")
    students = [generation.student.path for generation in config.generations]
    assert students == [str(tmp_path / "bases" / name) for name in ("first", "second")]
    # An override is relative to the file that is named on the command line, whether it sets a value or a section.
    config = load_config(path, ["sources.puzzles.path=x.csv", "generations=[{student: {path: second}}]"])
    assert config.sources["puzzles"].path == str(tmp_path / "x.csv")
    assert config.generations[0].student.path == str(tmp_path / "second")
    assert load_config(path, ["sources.puzzles={path: x.csv}"]).sources["puzzles"].path == str(tmp_path / "x.csv")


def test_an_ablation_of_a_file_that_has_a_base(tmp_path: Path):
    write(tmp_path / "bases" / "all.yaml", ALL)
    write(tmp_path / "runs" / "own.yaml", {"base": "../bases/all.yaml", "seed": 5})
    ablation = {
        "title": "T",
        "base": "runs/own.yaml",
        "seeds": [3],
        "set": {"sources.more.path": "mine.parquet", "trust.kind": "neural"},
        "variants": {"a": {}, "b": {"trust.width": 8}},
    }
    variants = load_ablation(write(tmp_path / "ablation.yaml", ablation)).variants[3]
    assert [variant.config.trust.width for variant in variants] == [512, 8]
    for variant in variants:
        sources = variant.config.sources
        assert Path(sources["puzzles"].path).resolve() == tmp_path / "bases" / "data" / "puzzles.parquet"
        assert Path(sources["more"].path) == tmp_path / "runs" / "mine.parquet"


def test_bases_that_are_missing_or_lead_back_are_refused(tmp_path: Path):
    path = write(tmp_path / "a.yaml", {**ALL, "base": "b.yaml"})
    told = refusal(path)
    assert told.startswith(f"{tmp_path / 'b.yaml'}: cannot be read (No such file") and f"{path} names it" in told
    write(tmp_path / "b.yaml", {"base": "sub/../a.yaml"})
    (tmp_path / "sub").mkdir()
    told = refusal(path)
    assert f"{tmp_path / 'b.yaml'}: base: 'sub/../a.yaml' leads back to itself" in told
    assert f"({tmp_path / 'a.yaml'} -> {tmp_path / 'b.yaml'} -> {tmp_path / 'a.yaml'})" in told
    write(tmp_path / "b.yaml", {"base": "b.yaml"})
    assert "base: 'b.yaml' leads back to itself" in refusal(path)
    write(tmp_path / "c.yaml", {})
    (tmp_path / "b.yaml").write_text("- a\n")
    assert refusal(path).startswith(f"{tmp_path / 'b.yaml'}: is not a mapping; {path} names it as its base")


@pytest.mark.parametrize("given", [3, [], [3], "", [""], {"a": "b"}, None])
def test_base_names_files(tmp_path: Path, given: Any):
    path = write(tmp_path / "a.yaml", {**ALL, "base": given})
    assert refusal(path) == f"{path}: base: {given!r} is neither a file nor a list of files; name them by their paths"


def test_two_bases_may_share_one(tmp_path: Path):
    write(tmp_path / "all.yaml", ALL)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.yaml", {"base": "all.yaml"})
    assert load_config(write(tmp_path / "own.yaml", {"base": ["a.yaml", "b.yaml"]})).name == "all"


def test_keys_of_an_earlier_version_in_a_run_directory_are_passed_over(tmp_path: Path):
    selection = {**ALL["selection"], "keep": ["id"]}
    path = write(tmp_path / "config.yaml", {**ALL, "selection": selection, "chat_preset": None, "run_dir": "elsewhere"})
    assert "chat_preset: unknown key" in refusal(path)
    (tmp_path / "manifest.json").write_text("{}")
    assert load_config(path).directory == tmp_path

"""``curate ablate`` from the command line: what it shares, how it goes on, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from curation.cli import main
from curation.errors import UserError
from curation.extras.ablate.config import load
from curation.extras.ablate.running import check, run
from curation.storage.paths import to_place

pytestmark = pytest.mark.long


def files(directory: Path, **keys: Any) -> Path:
    """An ablation of a run over sums with the scripted teacher, half of whose labels are right."""
    sums = directory / "sums.jsonl"
    if not sums.exists():
        rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in range(900)]
        sums.write_text("\n".join(map(json.dumps, rows)))
    base = {
        "name": "sums",
        "domain": "math",
        "sources": {"sums": {"path": "sums.jsonl"}},
        "splits": {"source": {"from": "sums", "rows": 500}, "pool": {"from": "sums"}, "audit": True},
        "teacher": {
            "backend": "scripted",
            "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"], "log": str(directory / "labelled.log")},
            "states": ["prompt_last", "output_last"],
        },
        "trust": {"kind": "linear_probe"},
        "selection": {"budget": {"n": 50}, "arms": ["trust"]},
        "ray": {"num_cpus": 2},
    }
    (directory / "sums.yaml").write_text(yaml.safe_dump(base))
    ablation = {
        "title": "Class weights",
        "base": "sums.yaml",
        "seeds": [0],
        "reference": "none",
        "variants": {
            "none": {"trust.class_weight": 0.0},
            "full": {"trust.class_weight": 1.0},
            "same": {"trust.class_weight": 0.0},
            "confidence": {"function": "internal_confidence"},
        },
        **keys,
    }
    path = directory / "weights.yaml"
    path.write_text(yaml.safe_dump(ablation, sort_keys=False))
    return path


def test_variants_share_what_they_have_in_common_also_with_another_ablation(local_ray: Any, tmp_path: Path) -> None:
    output = to_place(str(tmp_path / "out"))
    content = run(load(files(tmp_path)), output)
    by_name = {line["variant"]: line for line in content["lines"]}
    assert by_name["none"]["auc"] == by_name["same"]["auc"] and by_name["none"]["num_rows"] == 400
    assert len(list((tmp_path / "out/sums/seed-0/gen-0").glob("trust@*"))) == 2
    assert by_name["confidence"]["num_fit"] == [] and by_name["full"]["num_fit"] == by_name["none"]["num_fit"]
    assert json.loads((tmp_path / "out/weights.json").read_text()) == content
    labelled = (tmp_path / "labelled.log").read_text().split()
    assert len(labelled) == len(set(labelled)) == 900  # no row twice

    other = files(tmp_path, variants={"none": {"trust.class_weight": 0.0}, "half": {"trust.class_weight": 0.5}})
    renamed = other.rename(tmp_path / "halves.yaml")
    again = run(load(renamed), output)
    assert again["lines"][0]["auc"] == by_name["none"]["auc"]
    assert (tmp_path / "labelled.log").read_text().split() == labelled
    assert {path.name for path in (tmp_path / "out").glob("*.md")} == {"weights.md", "halves.md"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"variants": {}}, "variants"),
        ({"reference": "nobody"}, "reference: 'nobody' is not one of the variants none, full, same, confidence"),
        ({"variants": {"none": {"trust.depht": 2}}}, "variants.none: trust.depht: unknown key; did you mean 'depth'"),
        ({"variants": {"none": {"seed": 4}, "full": {}}}, "variants.full: changes domain, seed, sources or splits"),
        ({"variants": {"none": {"function": "reward"}}}, "variants.none.function: 'reward' is none of naive"),
        ({"variants": {"none": {"name.x": 2}}}, "variants.none.name.x: name is a value, not a section"),
        ({"sets": ["elsewhere"]}, "'elsewhere' is none of pool; add it to splits.probes"),
        ({"set": {"splits.audit": False}}, "the pool is graded only with splits.audit: true"),
        ({"students": True}, "the run has no generations"),
        ({"set": {"teacher.store_states": False}}, "store_states: false would label the pool anew"),
        ({"set": {"selection.budget": {"n": 5000}}}, "5,000"),
        ({"base": "nothing.yaml"}, "nothing.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_labelled(
    local_ray: Any, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        run(load(files(tmp_path, **keys)), to_place(str(tmp_path / "out")))
    assert message in str(refused.value)
    assert not list((tmp_path / "out").glob("*/*/prepare*"))


def test_the_command_names_the_mistake_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["ablate", str(files(tmp_path, reference="nobody"))])
    assert result.exit_code == 2 and result.stderr.startswith("curate: ") and result.stderr.count("\n") == 1


def test_the_shipped_ablations_are_valid() -> None:
    folder = Path(__file__).parents[1] / "examples" / "ablations"
    found = [path for path in sorted(folder.glob("*.yaml")) if "\nvariants:" in path.read_text()]
    assert len(found) >= 8
    for path in found:
        check(load(path))

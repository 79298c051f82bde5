"""The key of every stage of some runs: what is finished stays finished when the code that describes a run changes.

``data/keys.json`` has, by configuration and stage, the inputs of the key: short ones as they are, long ones as a
fingerprint. Outputs of other stages stand by their names, so that nothing is run.
``python tests/curation/pipeline/test_keys.py`` writes the file anew, for a change that is meant and told in
``docs/log/experiments.md``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from curation.config import RunConfig
from curation.config.load import load_config
from curation.pipeline.chain import describe
from curation.pipeline.extending import describe_analysis
from curation.refs import fingerprint
from curation.rundir.graph import Stage, order_stages, to_plain_json, with_outs
from curation.sources import SourceFile, discover

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "data" / "keys.json"
SHORT = 60
"""Characters of an input that is kept as it is."""
JUDGE = "judge={model: {path: examples/bases/teacher}, splits: [source, test]}"
CHAIN = (
    "chain={arms: [trust, naive], shallow: [first_teacher, predecessor]}",
    "generations=[{student: {path: examples/bases/student}}, {student: {path: examples/bases/teacher}}, "
    "{student: {path: examples/bases/student}}]",
)  # fmt: skip
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "quickstart": ("examples/quickstart.yaml", ()),
    "mcqa": ("examples/mcqa.yaml", ()),
    "math": ("examples/math.yaml", ()),
    "grpo": ("examples/grpo.yaml", ()),
    "chain": ("examples/quickstart.yaml", CHAIN),
    "search and judge": ("examples/quickstart.yaml", ("trust.search=true", JUDGE)),
    "scored as labelled": ("examples/quickstart.yaml", ("teacher.store_states=false",)),
}


def keys_of(config: RunConfig) -> dict[str, Any]:
    """The key of each stage of a run and of its analysis, by name; ``needs`` beside it."""
    chain = describe(config, {name: discover(source) for name, source in config.sources.items()})
    stages = [*chain.stages, *order_stages(describe_analysis(config, chain.tables, chain.generations))]
    return {stage.name: dict(_key(stage)) for stage in stages}


def _key(stage: Stage) -> Iterator[tuple[str, Any]]:
    inputs = {"revision": stage.revision, "needs": list(map(str, stage.needs)), **stage.inputs}
    for name, value in to_plain_json(with_outs(inputs, str), {}).items():
        if name == "files":
            value = {
                source: [_portable(SourceFile.from_json(file)) for file in files] for source, files in value.items()
            }
        text = json.dumps(value, sort_keys=True).replace(str(ROOT), ".")
        yield name, json.loads(text) if len(text) <= SHORT else f"#{fingerprint(text)}"


def _portable(file: SourceFile) -> dict[str, Any]:
    return {**file.to_json(), "modified": ""}


def found() -> dict[str, Any]:
    return {
        name: keys_of(load_config(str(ROOT / path), [*overrides, "run_dir=/nowhere/run"]))
        for name, (path, overrides) in RUNS.items()
    }


def test_the_key_of_every_stage_is_what_it_was(monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    known, now = json.loads(GOLDEN.read_text()), found()
    assert {name: set(keys) for name, keys in now.items()} == {name: set(keys) for name, keys in known.items()}
    changed = {
        f"{run}: {stage}": {name for name in {*key, *known[run][stage]} if key.get(name) != known[run][stage].get(name)}
        for run, keys in now.items()
        for stage, key in keys.items()
        if key != known[run][stage]
    }
    assert not changed


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(found(), indent=0, sort_keys=True) + "\n")

"""Class quotas measured by students of a real model: ``python -m benchmarks.quota_students --model FOLDER``.

The base labels two sets of short texts, with scores calibrated by texts without content (otherwise it gives one class
to all rows of one of them). In each of three draws, 500 source rows count as labelled. The stacked trust function,
fitted on these, selects 200 and 500 rows of the pool with class quotas (the estimated shares, the default of
`selection.quota`) and without. A student of the teacher's own base is trained by LoRA on each selection and, as a
control, on a uniform draw of as many pool rows, with the teacher's labels and with gold ones. Students choose among the
classes by likelihood, on the source rows that were not drawn. Printed: purity, the share of the largest class,
accuracies with their spread over draws, and the share of the gap from "without" to gold that quotas close.

``select`` writes one JSON file; ``train`` needs that file and the model, on a CPU or a GPU::

    python -m benchmarks.quota_students label --model FOLDER --data FOLDER --work build/quotas   # resumable
    python -m benchmarks.quota_students select --work build/quotas --chosen chosen.json
    python -m benchmarks.quota_students train --chosen chosen.json --model FOLDER --part 0/4   # one of four processes
    python -m benchmarks.quota_students show --chosen chosen.json   # without such a file, the results beside this one
"""

import argparse
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from benchmarks.recorded import recorded

SETS = ("banking77", "irony")
LABELLED, SIZES, DEALS = 500, (200, 500), 3
RESULTS = Path(__file__).with_suffix(".jsonl")
"""Results on an NVIDIA H200, by eight parallel processes, with bfloat16 in tests and float32 in training; one of 48
students and one base are missing, since their process ended early."""
QUOTAS, NONE, UNIFORM, GOLD = "quotas", "without", "uniform draw", "gold"


def label(name: str, data: Path, model: Path, work: Path, *, num_gpus: int, dtype: str, backend: str) -> None:
    """Label and grade a set of ``benchmarks.real.tasks`` by the domain of classification, calibrated."""
    from benchmarks.real.tasks import TASKS, configuration, rows_of
    from curation.config import RunConfig
    from curation.pipeline.running import run_part

    section = configuration(name, data, model, work, dtype=dtype).model_dump(mode="json", exclude_unset=True)
    _, labels = rows_of(name, data, work)
    section["domain"] = {
        "name": "classification",
        "classes": {each: each.replace("_", " ") for each in labels},
        "cue": TASKS[name].cue,
        "calibrate": "content_free",
    }
    section["teacher"]["backend"] = backend
    if backend == "vllm":  # which gives other layers of some models only
        section["teacher"]["states"] = section["trust"]["states"]
        section["teacher"]["vllm"] = {"engine": {"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 4 << 30}}
    section["teacher"]["actors"] = {"min": 1, "max": 1, "num_gpus": num_gpus} if num_gpus else {"min": 2, "max": 2}
    config = RunConfig.model_validate(section)
    for stage in ("gen-0/grade-source", "gen-0/grade-pool"):
        run_part(config, stage)


def select(work: Path, sets: tuple[str, ...]) -> dict[str, Any]:
    """Return the rows of each set, size, draw and arm, and the rows that students are tested on."""
    from benchmarks.real.__main__ import rows_of
    from benchmarks.real.arms import drawn, fitted
    from curation.config import DomainConfig
    from curation.domains import get_domain
    from curation.selection.class_shares import estimate_shares
    from curation.selection.quotas import allocate
    from curation.tables import io

    chosen: dict[str, Any] = {}
    for name in sets:
        directory = work / name
        (source, states), (pool, _) = (rows_of(directory, split) for split in ("source", "pool"))
        section = yaml.safe_load((directory / "config.yaml").read_text())["domain"]
        domain = get_domain(DomainConfig.model_validate(section))
        stages = recorded(directory)
        prepared = stages["prepare"]["outputs"]["tables"]

        def column(uri: str, key: str) -> dict[int, Any]:
            table = io.open_table(io.find_latest(uri)).to_table(columns=["row_id", key])
            return dict(zip(table["row_id"].to_pylist(), table[key].to_pylist(), strict=True))

        texts = column(prepared["source"]["uri"], "text") | column(prepared["pool"]["uri"], "text")
        gold = column(prepared["source"]["uri"], "gold") | column(prepared["audit"]["uri"], "gold")
        label: dict[int, Any] = {}
        for split in ("source", "pool"):
            label |= column(stages[f"gen-0/label-{split}"]["outputs"]["labels"]["uri"], "label")
        classes = list(section["classes"])

        prompts = {each: domain.prompt({"text": text}) for each, text in texts.items()}
        words = {each: domain.answer(each, {"text": ""}) for each in classes}

        place = {each: number for number, each in enumerate(classes)}
        jobs, tests = [], []
        for deal in range(DEALS):
            part = drawn(source, LABELLED, deal)
            ids = [int(row) for row in source.row_ids_N]
            known = [each for each, number in zip(ids, part.part_N, strict=True) if number >= 0]
            left = sorted(set(ids) - set(known))
            tests.append([(prompts[each], words[gold[each]]) for each in left])
            trust_N = fitted("stacked", states)(part, pool, deal).trust_N
            assert trust_N is not None, "a stack gives probabilities"
            pool_ids = [int(row) for row in pool.row_ids_N]
            label_N = np.array([place[label[each]] for each in pool_ids])
            confusion_CT = np.zeros((len(classes), len(classes) + 1), dtype=np.int64)
            np.add.at(confusion_CT, ([place[gold[each]] for each in known], [place[label[each]] for each in known]), 1)
            given_T = np.bincount(label_N, minlength=len(classes) + 1)
            shares = estimate_shares(classes, given_T, confusion_CT).shares
            best = np.argsort(-trust_N, kind="stable")
            uniform = np.random.default_rng(deal).permutation(len(pool_ids))
            for size in SIZES:
                places_C = allocate(shares, given_T[: len(classes)], size)
                by_class = [best[label_N[best] == c][:places] for c, places in enumerate(places_C)]
                for arm, rows in (
                    (QUOTAS, np.concatenate(by_class)),
                    (NONE, best[:size]),
                    (UNIFORM, uniform[:size]),
                    (GOLD, uniform[:size]),
                ):
                    taken = [pool_ids[index] for index in rows]
                    answers = gold if arm == GOLD else label
                    right = float(np.mean([answers[each] == gold[each] for each in taken]))
                    counts = Counter(answers[each] for each in taken)
                    jobs.append(
                        {"size": size, "deal": deal, "arm": arm, "purity": right}
                        | {"largest": max(counts.values()) / size, "classes": len(counts)}
                        | {"rows": [(prompts[each], words[answers[each]]) for each in taken]}
                    )
        options = list(domain.options({"text": ""}) or ())
        chosen[name] = {"options": options, "tests": tests, "jobs": jobs}
    return chosen


def train(chosen: dict[str, Any], model: str, part: str, most: int | None) -> Iterator[dict[str, Any]]:
    """Train and test this part's students, one after another; return the accuracy of each, and of the base."""
    import torch

    from curation.config import SftConfig, TeacherConfig
    from curation.refs import ModelRef

    on_gpu = torch.cuda.is_available()
    base = ModelRef(base=model)
    recipe = SftConfig(epochs=3, global_batch_size=16, micro_batch_size=16, gpus_per_worker=int(on_gpu))
    tested = TeacherConfig.model_validate(
        {"model": {"path": model}, "dtype": "bfloat16" if on_gpu else "float32", "states": ["output_last"]}
        | {"backend": "transformers", "actors": {"num_gpus": int(on_gpu)}}
    )
    mine, parts = map(int, part.split("/"))
    number = 0
    for name, task in chosen.items():
        for deal, rows in enumerate(task["tests"]):
            if number % parts == mine:
                accuracy = test(task["options"], tested, base, rows[:most])
                yield {"set": name, "deal": deal, "arm": "base", "size": 0, "accuracy": accuracy}
            number += 1
        for job in task["jobs"]:
            if number % parts == mine:
                begun = time.monotonic()
                with tempfile.TemporaryDirectory() as directory:
                    student = _trained(base, job, recipe, Path(directory), most)
                    took = time.monotonic() - begun
                    accuracy = test(task["options"], tested, student, task["tests"][job["deal"]][:most])
                line = {key: value for key, value in job.items() if key != "rows"}
                yield line | {"set": name, "accuracy": accuracy, "seconds": took}
            number += 1


def _trained(base: Any, job: dict[str, Any], recipe: Any, folder: Path, most: int | None) -> Any:
    """Return a student of the base, by LoRA on the job's rows."""
    import lance

    from curation.refs import ModelRef, TableRef
    from train.sft import fine_tune

    rows = job["rows"][:most]
    prompts, completions = zip(*rows, strict=True)
    columns = {"row_id": range(len(rows)), "prompt": prompts, "completion": completions}
    uri = str(folder / "rows.lance")
    table = TableRef(uri=uri, version=lance.write_dataset(pa.table(columns), uri).version)
    fine_tune(base, table, recipe, seed=job["deal"], output=folder / "student")
    return ModelRef(base=base.base, adapter=str(folder / "student"))


def test(options: list[str], config: Any, model: Any, rows: list[tuple[str, str]]) -> float:
    """Return the share of rows, prompts with right answers, whose likeliest option is the right one."""
    from curation.config import DecodingConfig
    from curation.teachers import Request, load_teacher

    teacher = load_teacher(config, model)
    requests = [Request(row_id=row, prompt=prompt, options=tuple(options)) for row, (prompt, _) in enumerate(rows)]
    right = 0
    for batch in teacher.label(requests, DecodingConfig(), seed=0):
        for row in batch.to_pylist():
            right += row["completion"] == rows[row["row_id"]][1]
    return right / len(rows)


def show(found: list[dict[str, Any]]) -> None:
    """Print a line for each set, size and arm."""
    by_arm: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in found:
        by_arm[line["set"], line["size"], line["arm"]].append(line)
    mean: dict[tuple[str, int, str], float] = {}
    for (name, size, arm), lines in sorted(by_arm.items()):
        accuracies = 100 * np.array([line["accuracy"] for line in lines])
        mean[name, size, arm] = float(accuracies.mean())
        text = f"{name} {size} rows, {arm}: accuracy {accuracies.mean():.1f} ± {accuracies.std():.1f} ({len(lines)})"
        if arm != "base":
            purity, largest = (100 * np.mean([line[key] for line in lines]) for key in ("purity", "largest"))
            text += f", purity {purity:.1f}, largest class {largest:.1f} %"
        print(text)
    for name, size, arm in sorted(mean):
        if arm == QUOTAS:
            gap = mean[name, size, GOLD] - mean[name, size, NONE]
            closed = mean[name, size, QUOTAS] - mean[name, size, NONE]
            print(
                f"{name} {size}: quotas close {closed:.1f} of the {gap:.1f} points to gold (ratio {closed / gap:.2f})"
            )


def main() -> None:
    """Label, select, train or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("label", "select", "train", "show"))
    parser.add_argument("--work", type=Path, default=Path("build/real"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--chosen", type=Path, default=Path("build/quota_students.json"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="as of benchmarks.real")
    parser.add_argument("--model", help="folder of a causal model")
    parser.add_argument("--num-gpus", type=int, default=0)
    parser.add_argument("--backend", choices=("transformers", "vllm"), default="transformers", help="labels")
    parser.add_argument("--dtype", default="bfloat16", help="of the labelling teacher")
    parser.add_argument("--part", default="0/1", help="which of how many processes")
    parser.add_argument("--most", type=int, help="rows of each training and test; for a trial")
    options = parser.parse_args()
    path: Path = options.chosen
    sets = tuple(options.sets.split(","))
    if options.step == "label":
        for name in sets:
            given = {"num_gpus": options.num_gpus, "dtype": options.dtype, "backend": options.backend}
            label(name, options.data, options.model, options.work, **given)
    elif options.step == "select":
        path.write_text(json.dumps(select(options.work, sets)))
    elif options.step == "train":
        with path.with_suffix(f".{options.part.replace('/', '-of-')}.jsonl").open("w") as file:
            for found in train(json.loads(path.read_text()), options.model, options.part, options.most):
                print(json.dumps(found), file=file, flush=True)
                print(found, flush=True)
    else:
        parts = sorted(path.parent.glob(f"{path.stem}.*.jsonl")) or [RESULTS]
        show([json.loads(line) for part in parts for line in part.read_text().splitlines()])


if __name__ == "__main__":
    main()

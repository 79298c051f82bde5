"""The paper's runs in examples/paper: valid with stand-ins of models and data, the paper's values, their page."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from curation.cli import main
from curation.config import RunConfig, TrustConfig
from curation.config.files import read
from curation.config.load import load_config

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
PAPER, PAGE = ROOT / "examples" / "paper", ROOT / "docs" / "log" / "paper-tables.md"
RUNS = sorted(PAPER.glob("*.yaml"))
DATA = PAPER / "data"
ROWS = 60

SHAPES = {
    "allenai/OLMo-2-0425-1B": ("olmo2", 2048, 16),
    "allenai/OLMo-2-1124-7B": ("olmo2", 4096, 32),
    "allenai/OLMo-2-1124-13B": ("olmo2", 5120, 40),
    "Qwen/Qwen3-0.6B-Base": ("qwen3", 1024, 28),
    "Qwen/Qwen3-1.7B-Base": ("qwen3", 2048, 28),
    "Qwen/Qwen3-4B-Base": ("qwen3", 2560, 36),
    "Qwen/Qwen3-8B-Base": ("qwen3", 4096, 36),
    "Qwen/Qwen3-14B-Base": ("qwen3", 5120, 40),
    "google/gemma-3-1b-it": ("gemma3_text", 1152, 26),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 4096, 32),
    "Skywork/Skywork-Reward-V2-Qwen3-8B": ("qwen3", 4096, 36),
    "KbsdJames/Omni-Judge": ("llama", 4096, 32),
}
"""Of each checkpoint: model type, hidden size, layers."""
SMALL = {"adapt": 5, "source": 20, "calibration": 5, "test": 5, "probes.held_out": 5, "pool": 20}
"""Rows of the splits that a file sizes, cut down to the stand-ins."""


each_run = pytest.mark.parametrize("path", RUNS, ids=[path.stem for path in RUNS])


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    """Folders ``models`` and ``data``: checkpoints with one weight, and rows as their publishers lay them out."""
    root = tmp_path_factory.mktemp("paper")
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), eos_token="a")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    for name, (family, hidden, layers) in SHAPES.items():
        config = AutoConfig.for_model(family, hidden_size=hidden, num_hidden_layers=layers)
        config.save_pretrained(root / "models" / name)
        tokenizer.save_pretrained(root / "models" / name)
        save_file(
            {"model.norm.weight": np.zeros(hidden, dtype=np.float32)}, root / "models" / name / "model.safetensors"
        )
    for file, rows in published().items():
        path = root / "data" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif path.suffix == ".csv":
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            path.write_text("\n".join(lines) + "\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def published() -> dict[str, list[dict[str, Any]]]:
    """Rows by file, with the columns of the published datasets."""
    texts, letters = ["one", "two", "three", "four"], ["A", "B", "C", "D"]
    parts = "00000-of-00001.parquet"
    struct = {"text": texts, "label": letters}
    arc = [{"id": f"{n}", "question": f"q {n}", "choices": struct, "answerKey": "A"} for n in range(ROWS)]
    book = [{"id": f"{n}", "question_stem": f"q {n}", "choices": struct, "answerKey": "A"} for n in range(ROWS)]
    wrong = {f"distractor{n}": texts[n] for n in (1, 2, 3)}
    sciq = [{"question": f"q {n}", **wrong, "correct_answer": "one", "support": ""} for n in range(ROWS)]
    options = {f"answer{letter}": text for letter, text in zip("ABC", texts, strict=False)}
    social = [{"context": f"c {n}", "question": "why?", **options, "label": "1"} for n in range(ROWS)]
    mmlu = [{"question": f"m {n}", "subject": "", "choices": texts, "answer": 0} for n in range(ROWS)]
    math = [
        {"problem": f"Add {n}.", "level": "Level 3", "type": "Algebra", "solution": rf"\boxed{{{n}}}"}
        for n in range(ROWS)
    ]
    omni = [
        {"domain": [], "difficulty": 4.5, "problem": f"p {n}", "solution": "s", "answer": "1", "source": "x"}
        for n in range(ROWS)
    ]
    aime = [
        {"ID": f"1983-{n}", "Year": 1983, "Problem Number": n, "Question": f"a {n}", "Answer": n, "Part": ""}
        for n in range(ROWS)
    ]
    gsm8k = [{"question": f"g {n}", "answer": f"So #### {n}"} for n in range(ROWS)]
    math_500 = [{**row, "answer": "1", "problem": f"t {n}"} for n, row in enumerate(math)]
    puzzles = [
        {"PuzzleId": n, "FEN": "r5k1/8/8/8/8/8/8/6K1 w - - 0 1", "Moves": "g1h1 a8a1", "Rating": 900 + n, "Themes": ""}
        for n in range(ROWS * 3)
    ]
    return {
        f"mmlu/all/auxiliary_train-{parts}": mmlu,
        **{f"ai2_arc/ARC-{kind}/{split}-{parts}": arc for kind in ("Easy", "Challenge") for split in ("train", "test")},
        **{f"openbookqa/main/{split}-{parts}": book for split in ("train", "test")},
        **{f"sciq/data/{split}-{parts}": sciq for split in ("train", "test")},
        **{f"social_i_qa/default/{split}/0000.parquet": social for split in ("train", "validation")},
        **{f"math/{subject}/train-{parts}": math for subject in ("algebra", "geometry")},
        "omni_math_to_5.jsonl": omni,
        "aime/AIME_Dataset_1983_2024.csv": aime,
        f"gsm8k/main/train-{parts}": gsm8k,
        "math_500/test.jsonl": math_500,
        "lichess_db_puzzle.csv": puzzles,
    }


def overrides(config: RunConfig, stand_ins: Path) -> list[str]:
    """What puts the stand-ins in place of data and models."""
    found = [f"sources.{name}.path={moved(source.path, stand_ins)}" for name, source in config.sources.items()]
    keys = {"teacher": "teacher.model", "second teacher": "signals.second_teacher"}
    keys |= {"reward model": "signals.reward.model", "judge": "judge.model"}
    keys |= {f"student {n}": f"generations.{n}.student" for n in range(len(config.generations))}
    found += [f"{keys[role]}.path={stand_ins / 'models' / str(model.path)}" for role, model in config.models.items()]
    for split, rows in SMALL.items():
        given = config.splits.named().get(split.replace("probes.", "probe-"))
        if given is not None and given.rows is not None:
            found.append(f"splits.{split}.rows={rows}")
    return found + ([] if config.selection.budget.n is None else ["selection.budget.n=5"])


def moved(path: str, stand_ins: Path) -> str:
    """The path of a source among the stand-ins."""
    inner = path.replace("/base/../", "/").removeprefix(f"{DATA}/")
    assert not Path(inner).is_absolute(), f"{path}: is not in {DATA}"
    return str(stand_ins / "data" / inner)


@each_run
def test_run_is_valid(path, stand_ins):
    config = load_config(path)
    assert config.name == path.stem
    given = [part for override in overrides(config, stand_ins) for part in ("--set", override)]
    done = CliRunner().invoke(main, ["validate", str(path), *given])
    assert done.exit_code == 0, done.output
    assert done.output.endswith(f"{path}: is valid\n")
    roles = dict(re.findall(rf"^([a-z0-9 ]+): {stand_ins / 'models'}/(\S+) at ", done.output, re.MULTILINE))
    assert roles == {role: model.path for role, model in config.models.items()}
    assert set(roles.values()) <= set(SHAPES)
    warnings = [line for line in done.output.splitlines() if line.startswith("warning: ")]
    few = re.compile(r"warning: student: .* optimizer steps?, which hardly move it")  # of the test's few rows
    assert not [line for line in warnings if few.match(line) is None]


ROW = ("depth", "width", "dropout", "learning_rate", "weight_decay", "class_weight")
NETWORKS = {
    # By domain and teacher: depth, width, dropout, learning rate, weight decay, class weight (Table 15).
    ("mcqa", "allenai/OLMo-2-0425-1B"): (4, 512, 0.2, 5e-5, 1e-4, 1.0),
    ("mcqa", "Qwen/Qwen3-0.6B-Base"): (4, 512, 0.2, 5e-5, 1e-4, 0.5),
    ("math", "Qwen/Qwen3-1.7B-Base"): (8, 1024, 0.2, 1e-5, 1e-3, 1.0),
    ("math", "Qwen/Qwen3-4B-Base"): (8, 1024, 0.2, 1e-5, 1e-3, 1.0),
    ("math", "Qwen/Qwen3-8B-Base"): (8, 1024, 0.2, 1e-5, 1e-3, 1.0),
    ("math", "google/gemma-3-1b-it"): (8, 1024, 0.2, 1e-5, 1e-3, 1.0),
    ("chess", "allenai/OLMo-2-0425-1B"): (4, 512, 0.2, 1e-5, 1e-4, 0.5),
    ("chess", "Qwen/Qwen3-0.6B-Base"): (4, 512, 0.2, 1e-5, 1e-4, 0.5),
    ("chess", "Qwen/Qwen3-8B-Base"): (4, 512, 0.2, 1e-5, 1e-4, 0.5),  # a teacher of Table 5; Table 15 has no row for it
}


@each_run
def test_run_has_the_papers_settings(path):
    config = load_config(path)
    domain, trust, student, model = config.domain.name, config.trust, config.student, config.teacher.model
    assert model is not None
    found = (trust.depth, trust.width, trust.dropout, trust.learning_rate, trust.weight_decay, trust.class_weight)
    assert found == NETWORKS[domain, str(model.path)]
    assert read(path)["trust"] == {"kind": "ntf", "gpus_per_worker": 1}
    spelled_out = TrustConfig(
        kind="neural",
        fit_on="all",
        standardise=False,
        calibration="none",
        gpus_per_worker=1,
        **dict(zip(ROW, NETWORKS[domain, str(model.path)], strict=True)),
    )
    named = {"kind", "preset"}
    assert trust.model_dump(exclude=named) == spelled_out.model_dump(exclude=named)
    assert config.teacher.states == trust.states == ("output_last",)
    assert config.teacher.decoding.temperature == 0 and not config.teacher.decoding.normalise_options
    assert config.splits.audit and config.ray.address == "auto"
    assert student.gpus_per_worker == config.teacher.actors.num_gpus == 1
    if domain == "math":
        assert (student.method, student.num_workers, student.max_length) == ("grpo", 4, 1024)
        values = {name: getattr(student, name) for name in ("global_batch_size", "micro_batch_size", "epochs")}
        assert values == {"global_batch_size": 128, "micro_batch_size": 8, "epochs": 20}
        assert student.learning_rate == 1e-6 and not student.chat_template
        tests = config.evaluation
        assert (tests.num_runs, tests.chat_template, config.teacher.decoding.max_tokens) == (5, True, 4096)
        decoding = tests.decoding
        assert (decoding.temperature, decoding.top_p, decoding.top_k, decoding.min_p) == (0.6, 0.8, 20, 0.0)
        assert (decoding.presence_penalty, decoding.max_tokens) == (1.5, 4096)
        assert config.teacher.chat_template == ("gemma" in path.stem) == (config.judge is None)
        assert config.selection.budget.rule == ("n" if "gemma" in path.stem else "fit_purity")
        assert config.selection.budget.n == (500 if "gemma" in path.stem else None)
        return
    recipes = [student] if domain == "mcqa" else [student, config.teacher.adapt]
    for recipe in recipes:
        assert (recipe.method, recipe.max_length, recipe.global_batch_size, recipe.micro_batch_size) == (
            "sft",
            1024,
            128,
            4,
        )
        assert (recipe.learning_rate, recipe.adam_betas, recipe.weight_decay) == (1e-4, (0.9, 0.95), 0.01)
        assert (recipe.schedule, recipe.warmup_ratio, recipe.max_grad_norm) == ("cosine", 0.1, 1.0)
        assert (recipe.lora.rank, recipe.lora.alpha, recipe.lora.dropout) == (16, 32, 0.0)
        assert (recipe.num_epochs(1_999), recipe.num_epochs(2_000), recipe.num_workers) == (3, 1, 2)
        assert recipe.gradient_checkpointing
    budget = config.selection.budget
    if domain == "mcqa":
        assert config.teacher.adapt is None
        assert (budget.rule, budget.cap, config.splits.shots.rows) == ("oracle", 2_000, 5)
    elif path.stem == "chess-risk":
        risk = budget.risk
        assert (risk.alpha, risk.delta, risk.rule, config.splits.calibration.rows) == (0.1, 0.1, "hoeffding", 3_000)
    else:
        assert (budget.n, config.splits.adapt.rows) == (50_000, 10_000)
        assert config.evaluation.decoding.temperature == 0


ARMS = {
    "world": {"naive", "internal_confidence", "icl_confidence", "ensemble", "reward", "trust", "ground_truth"},
    "math": {"naive_stratified", "internal_confidence", "verbalized_confidence", "trust", "ground_truth"},
    "chess": {"naive", "internal_confidence", "verbalized_confidence", "trust", "ground_truth"},
}


def test_every_pair_of_the_papers_tables_has_a_run_with_its_arms():
    raws = {path.stem: read(path) for path in RUNS}
    arms = {name: set(raw["selection"]["arms"]) for name, raw in raws.items()}
    students = ("olmo2-1b", "olmo2-7b", "olmo2-13b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
    world = {f"world-{name}-{student}" for name in ("arc-c", "arc-e", "obqa", "sciq", "siqa") for student in students}
    chess = {f"chess-{student}" for student in students}
    math = {f"math-{pair}" for pair in ("1.7b-4b", "1.7b-8b", "4b-8b", "8b-8b", "gemma3-1b-llama3.1-8b")}
    assert set(raws) == world | chess | math | {"chess-chain", "chess-risk"}
    for name in world | chess | math:
        assert arms[name] >= ARMS[name.partition("-")[0]], name
    for size in ("1.7b", "4b", "8b", "14b"):
        assert arms[f"chess-qwen3-{size}"] >= {"naive_matched", "trust_gold"}  # Tables 6 and 7
    sizes = [step["student"]["path"] for step in raws["chess-chain"]["generations"]]
    assert sizes == [f"Qwen/Qwen3-{size}-Base" for size in ("1.7B", "4B", "8B", "14B")]
    chain = load_config(PAPER / "chess-chain.yaml").chain  # Table 5
    assert (chain.arms, chain.shallow) == (("trust", "naive"), ("first_teacher", "predecessor"))
    for name in world | chess:  # the name says the student
        told = raws[name]["generations"][0]["student"]["path"].lower().replace("olmo-2", "olmo2")
        family, size = name.split("-")[-2:]
        assert family in told and re.search(rf"-{re.escape(size)}(-|$)", told), name


def test_the_page_and_the_runs_name_each_other():
    linked = re.findall(r"^\|.*\]\(\.\./\.\./examples/paper/([\w.-]+\.yaml)\) \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(linked) == [path.name for path in RUNS]
    for name in re.findall(r"\]\((?!http)([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / name).exists(), name
    for path in RUNS:
        first, second = path.read_text().splitlines()[:2]
        assert re.match(r"# (Tables?|Figures) ", first) and second.endswith(": an estimate."), path.name
        gpus = int(re.match(r"# (\d) A100", second)[1])
        assert gpus == read(path)["student"]["num_workers"], path.name


def test_the_hours_are_those_that_the_script_computes():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "paper_hours.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "about 0 hours" not in PAGE.read_text()

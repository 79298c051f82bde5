"""What a first cut on the prompt's state saves on real puzzles: ``python -m benchmarks.cascade --seeds 0 1 2``.

The quickstart's teacher (adapted on 1,500 puzzles) labels a source of 12,500 and the rest of the shipped 32,000 puzzles
as the pool, once for each seed, which deals the rows anew (``runs/cascade-seed-<seed>``; what is done there is not done
again). On 60 % of the source two functions are fitted: the quickstart's own, and one of the same kind that reads the
state and the length of the prompt alone. The other 40 % set the first cut (``curation.selection.cascade``) for a full
pass that keeps a share of the pool, at 1 % loss with confidence 0.95. The whole pool has been answered, so that the
lines can say what the full pass would select and what of it the first cut loses.

Tokens: of prompts and answers together, and of answers alone; both are counted on the pool. Time: the same teacher, in
this process, labels 2,048 pool rows with the first cut and without, in turn. A chess answer has 3 tokens after a prompt
of some 50, so that nearly all tokens are the prompt's, which a first cut pays for, too: ``--answer`` says what the same
drops would save where answers have so many tokens (arithmetic, not a run).

Controls: a first score that is the same for all rows, and one that is drawn by lot.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from benchmarks.pairs import measure
from curation.config import RunConfig, TeacherConfig, TrustConfig
from curation.config.load import load_config
from curation.domains import get_domain
from curation.hashing import derive, hash_unit
from curation.metrics import over_seeds, proportion
from curation.pipeline.running import run_part
from curation.refs import ModelRef, TableRef, TrustRef
from curation.selection.cascade import FirstCut, HeldOut, first_cut
from curation.stages.first_cut import Cut, PromptGate, held_out
from curation.stages.label_chunks import LabelJob, label_rows
from curation.tables import io
from curation.teachers import load_teacher
from train.trust import fit_rows, read_rows

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
SOURCE_ROWS, HELD_OUT = 12_500, 0.4
LOSS, CONFIDENCE = 0.01, 0.95
TIMED_ROWS = 2048
Bools = npt.NDArray[np.bool_]


class Labelled(NamedTuple):
    """What a run has made."""

    config: RunConfig
    source: TableRef
    grades: TableRef
    pool: TableRef
    examples: TableRef
    teacher: ModelRef


class Outcome(NamedTuple):
    """What a first cut does to the pool, as shares."""

    dropped: float
    lost: float
    tokens: float
    answer_tokens: float


def labelled(seed: int) -> Labelled:
    """The labels of one deal, from the run's directory or made there."""
    overrides = [f"seed={seed}", f"name=cascade-seed-{seed}", "selection.arms=[neural]", "splits.audit=false"]
    config = load_config(QUICKSTART, [*overrides, f"splits.source={{from: puzzles, rows: {SOURCE_ROWS}}}"])
    for stage in ("gen-0/grade-source", "gen-0/label-pool"):
        run_part(config, stage, alone=False)
    stages = json.loads((Path(config.directory) / "manifest.json").read_text())["stages"]
    outputs = {name: stage["outputs"] for name, stage in stages.items()}
    (teacher,) = (found["model"] for name, found in outputs.items() if name.endswith("adapt") or "teacher" in name)
    return Labelled(
        config,
        *(
            TableRef.from_json(outputs[f"gen-0/{name}"][key])
            for name, key in (("label-source", "labels"), ("grade-source", "grades"), ("label-pool", "labels"))
        ),
        TableRef.from_json(outputs["prepare"]["pool"]),
        ModelRef.from_json(teacher),
    )


def fitted(made: Labelled, directory: Path) -> tuple[TrustRef, TrustRef, Callable[[Any], Bools]]:
    """The first and the full function, and which rows of the source they were not fitted on."""
    seed = made.config.seed

    def held(ids_N: npt.NDArray[np.int64]) -> Bools:
        return hash_unit(ids_N, derive(seed, "held out")) < HELD_OUT

    grades = io.read(made.grades)
    kept = io.write(grades.filter(pa.array(~held(grades["row_id"].to_numpy()))), str(directory / "grades.lance"))
    full = made.config.trust
    of_prompt = {"states": ("prompt_last",), "columns": ("num_prompt_tokens",), "fit_on": "all"}
    refs = []
    for name, config in (("first", full.model_copy(update=of_prompt)), ("full", full)):
        refs.append(fit(config, made.source, kept, seed).save(directory / name))
    return refs[0], refs[1], held


def fit(config: TrustConfig, labels: TableRef, grades: TableRef, seed: int) -> Any:
    """A function of the configured kind."""
    torch.set_num_threads(2)
    return fit_rows(config.kind, read_rows(labels, grades, config, seed=seed), config, seed=seed, origin={})


def outcome(pool: HeldOut, keep: float, threshold: float | None) -> tuple[Outcome, str]:
    """What a threshold does to the pool, and what of the selected rows it loses, with its interval."""
    num = round(keep * len(pool.full_M))
    best = np.argsort(-np.nan_to_num(pool.full_M, nan=-np.inf), kind="stable")[:num]
    selected = best[np.isfinite(pool.full_M[best])]
    dropped_M = pool.first_M < (-np.inf if threshold is None else threshold)
    lost = proportion(int(dropped_M[selected].sum()), len(selected))
    answers = int(pool.output_tokens_M[dropped_M].sum())
    total = int((pool.prompt_tokens_M + pool.output_tokens_M).sum())
    found = Outcome(
        float(dropped_M.mean()), lost.value, answers / total, answers / max(1, int(pool.output_tokens_M.sum()))
    )
    return found, f"lost {lost.value:.2%} ({lost.low:.2%} to {lost.high:.2%}) of {len(selected):,} selected"


def timing(made: Labelled, cut: Cut, num_pairs: int) -> str:
    """Rows a second with the first cut and without; and that rows which pass are answered alike."""
    torch.set_num_threads(2)
    config, domain = made.config, get_domain(made.config.domain)
    teacher_config = TeacherConfig(**config.teacher.model_dump(include=set(TeacherConfig.model_fields)))
    job = LabelJob(
        examples=made.examples,
        labels_uri="",
        domain=config.domain,
        teacher=teacher_config,
        model=made.teacher,
        decoding=config.teacher.decoding,
        seed=0,
        first_cut=cut,
    )
    teacher = load_teacher(teacher_config, made.teacher)
    rows = io.open_table(made.examples).take(np.arange(TIMED_ROWS)).to_pylist()
    answers: dict[bool, dict[int, str | None]] = {}

    def side(with_cut: bool) -> Callable[[int], float]:
        def run(_: int) -> float:
            gate = PromptGate(cut, teacher_config.states) if with_cut else None
            begun = time.monotonic()
            batches = list(label_rows(job, domain, teacher, rows, gate))
            seconds = time.monotonic() - begun
            found = [(row["row_id"], row["label"]) for batch in batches for row in batch.select([0, 2]).to_pylist()]
            answers[with_cut] = dict(found)
            if gate is not None:
                stopped = {
                    row["row_id"]
                    for batch in batches
                    for row in batch.select(["row_id", "dropped"]).to_pylist()
                    if row["dropped"]
                }
                answers[with_cut] = {row: label for row, label in found if row not in stopped}
            return TIMED_ROWS / seconds

        return run

    found = measure(side(True), side(False), num_pairs)
    differ = sum(answers[False][row] != label for row, label in answers[True].items())
    return f"{found.line('time with the first cut', 'rows/s', 1.0)}; {differ} of {len(answers[True]):,} labels differ"


def controls(held: HeldOut, pool: HeldOut, keep: float, seed: int) -> list[str]:
    """A first score that says nothing: the same for all rows, and drawn by lot."""
    rng, lines = np.random.default_rng(seed), []
    for name, draw in (("constant", lambda num: np.zeros(num)), ("by lot", lambda num: rng.random(num))):
        found = first_cut(held_with(held, draw(len(held.first_M))), keep=keep, loss=LOSS, confidence=CONFIDENCE)
        shares, lost = outcome(held_with(pool, draw(len(pool.first_M))), keep, found.threshold)
        lines.append(f"  control, {name}: {found.words()}; on the pool {shares.dropped:.2%} dropped, {lost}")
    return lines


def held_with(rows: HeldOut, first_M: npt.NDArray[np.float64]) -> HeldOut:
    """The rows with another first score."""
    return HeldOut(
        first_M=first_M, full_M=rows.full_M, prompt_tokens_M=rows.prompt_tokens_M, output_tokens_M=rows.output_tokens_M
    )


def one_seed(seed: int, keeps: list[float], answer: int, num_pairs: int) -> dict[float, Outcome]:
    """Lines of a seed; the outcome by share kept."""
    made = labelled(seed)
    directory = Path(made.config.directory) / "cascade"
    directory.mkdir(exist_ok=True)
    first, full, is_held = fitted(made, directory)
    held = held_out(made.source, first, full, is_held)
    pool = held_out(made.pool, first, full, lambda ids_N: np.ones(len(ids_N), dtype=np.bool_))
    means = pool.prompt_tokens_M.mean(), pool.output_tokens_M.mean()
    print(
        f"seed {seed}: {len(held.first_M):,} held-out rows, {len(pool.first_M):,} pool rows, prompts of {means[0]:.1f} "
        f"tokens, answers of {means[1]:.1f}",
        flush=True,
    )
    outcomes = {}
    for keep in keeps:
        # The threshold is wanted even where short answers make it pay nothing: then the record says that it is off.
        found = first_cut(held, keep=keep, loss=LOSS, confidence=CONFIDENCE)
        threshold = threshold_of(held, keep)
        outcomes[keep], lost = outcome(pool, keep, threshold)
        longer = outcomes[keep].dropped * answer / (means[0] + answer)
        print(f"  keep {keep:g}: {found.words()}")
        print(
            f"    on the pool: {outcomes[keep].dropped:.1%} dropped, {outcomes[keep].tokens:.2%} of all tokens and "
            f"{outcomes[keep].answer_tokens:.1%} of answer tokens saved, {lost}; with answers of {answer} tokens "
            f"{longer:.1%} of all tokens"
        )
        if threshold is not None and keep == keeps[0]:
            print(
                f"    {timing(made, Cut(function=first, threshold=threshold, break_even=0.0), num_pairs)}", flush=True
            )
    print("\n".join(controls(held, pool, keeps[0], seed)), flush=True)
    return outcomes


def threshold_of(held: HeldOut, keep: float) -> float | None:
    """The threshold, whether it pays or not: that of answers so long that it does."""
    longer = HeldOut(
        first_M=held.first_M,
        full_M=held.full_M,
        prompt_tokens_M=held.prompt_tokens_M,
        output_tokens_M=np.full(len(held.first_M), 1_000_000),
    )
    found: FirstCut = first_cut(longer, keep=keep, loss=LOSS, confidence=CONFIDENCE)
    return found.threshold


def main() -> None:
    """Print the lines of each seed, and means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--keep", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--answer", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    found = [one_seed(seed, options.keep, options.answer, options.pairs) for seed in options.seeds]
    for keep in options.keep:
        lines = []
        for name in Outcome._fields:
            mean = over_seeds([getattr(outcomes[keep], name) for outcomes in found])
            lines.append(f"{name} {mean.value:.2%} ({mean.low:.2%} to {mean.high:.2%})")
        print(f"keep {keep:g}, mean of {len(found)} seeds: {', '.join(lines)}")


if __name__ == "__main__":
    main()

"""Savings of a first cut on the prompt's hidden state: ``python -m benchmarks.cascade --seeds 0 1 2 [--task sums]``.

- ``--task chess``: the quickstart's teacher (adapted on 1,500 puzzles) answers 28,000 of the shipped puzzles freely.
- ``--task sums``: a small teacher from scratch answers 16,000 problems with their steps (``benchmarks.worked_sums``).

Each row is answered once (``runs/cascade-TASK``, which later calls reuse). Each seed splits the rows anew into rows to
fit on, held-out rows, and the pool. Two functions are fitted: the task's network in 400 steps (or five networks with
``--kind deep_ensemble``), and a linear probe (``--first``) that reads only the prompt's state and length, and learns
what the full function selects (``curation.extras.first_cut``). The held-out rows set the first cut for a full pass that
keeps a share of the pool, at 1 % and at 5 % loss with confidence 0.95. The whole pool has been answered, so the lines
count the selected and the lost rows.

Tokens of prompts and answers together, and of answers alone, are counted on the pool. Then the same teacher, in this
process, labels 1,024 pool rows with the first cut and without, in turn; printed are tokens written, selected rows that
are lost, and CPU seconds of one thread. A chess answer has 2 tokens after a prompt of 29, so nearly all tokens are in
the prompt, which a first cut must process too: ``--answer`` computes what the same drops would save with answers of
that many tokens.

Controls: the same number of rows dropped at random; a constant first score, and a random one.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from benchmarks import worked_sums
from benchmarks.pairs import measure
from benchmarks.recorded import recorded
from curation.arms import find_fitted
from curation.arrays import Bools, Int64s
from curation.config import RunConfig, TeacherConfig, TrustConfig
from curation.config.load import load_config
from curation.domains import get_domain
from curation.extras.first_cut.export import collect_held_out, write_cut_target
from curation.extras.first_cut.gate import FirstCutRule, PromptGate
from curation.extras.first_cut.threshold import HeldOut, describe_first_cut, find_first_cut
from curation.hashing import derive, hash_unit
from curation.metrics import average_over_seeds, compute_proportion
from curation.pipeline.running import run_part
from curation.refs import ModelRef, TableRef, TrustRef
from curation.stages.label_chunks import LabelJob, label_rows
from curation.tables import io
from curation.teachers import load_teacher
from train.trust import fit_rows, read_rows

EXAMPLES = Path(__file__).parents[1] / "examples"
LOSSES, CONFIDENCE = (0.01, 0.05), 0.95
TIMED_ROWS = 1024


class Task(NamedTuple):
    """A task: the rows, their splits and the settings of the teacher."""

    example: str
    rows: int
    fit_rows: int
    held_out_rows: int
    settings: Callable[[int], list[str]]
    """Function that returns the settings of the run for a number of source rows."""


def chess(rows: int) -> list[str]:
    """Return the quickstart's source with more rows, answered freely."""
    free = "teacher.decoding={max_tokens: 4}"
    return [free, f"splits.source={{from: puzzles, rows: {rows}}}", "splits.test={from: puzzles, rows: 500}"]


def sums(rows: int) -> list[str]:
    """Return problems with their steps; make the problems and their teacher if they are missing."""
    home = Path("runs/worked_sums").absolute()
    worked_sums.make(home)
    states = "[prompt_last, output_mean, output_last]"
    return [
        f"sources.sums.path={home / worked_sums.ROWS}",
        f"teacher.model.path={home / worked_sums.TEACHER}",
        f"teacher.states={states}",
        "teacher.token_logprobs=0",
        "teacher.decoding={max_tokens: 200, stop: []}",
        f"trust.states={states}",
        "trust.columns=[mean_logprob]",
        f"splits.source={{from: sums, rows: {rows}}}",
        "splits.test={from: sums, rows: 500}",
    ]


TASKS = {
    "chess": Task("quickstart.yaml", 28_000, 6_000, 12_000, chess),
    "sums": Task("grpo.yaml", 16_000, 4_000, 6_000, sums),
}


class Labelled(NamedTuple):
    """The tables and the teacher of the run."""

    task: Task
    config: RunConfig
    examples: TableRef
    labels: TableRef
    grades: TableRef
    teacher: ModelRef


class Deal(NamedTuple):
    """A split of the rows by a seed and a hash of their ids."""

    seed: int
    edges: tuple[float, float]

    def is_fit(self, ids_N: Int64s) -> Bools:
        """Return which rows the functions are fitted on."""
        return self._unit(ids_N) < self.edges[0]

    def is_held_out(self, ids_N: Int64s) -> Bools:
        """Return which rows set the first cut."""
        return (self._unit(ids_N) >= self.edges[0]) & (self._unit(ids_N) < self.edges[1])

    def is_pool(self, ids_N: Int64s) -> Bools:
        """Return which rows are the pool's."""
        return self._unit(ids_N) >= self.edges[1]

    def _unit(self, ids_N: Int64s) -> npt.NDArray[np.float64]:
        return hash_unit(ids_N, derive(self.seed, "deal"))


class Outcome(NamedTuple):
    """Shares of the pool that a first cut drops, loses and saves."""

    dropped: float
    lost: float
    tokens: float
    answer_tokens: float


def labelled(name: str, kind: str) -> Labelled:
    """Return the answers of the teacher to all rows, from the run's directory or made there."""
    task = TASKS[name]
    config = load_config(
        EXAMPLES / task.example,
        [
            f"name=cascade-{name}",
            f"trust.kind={kind}",
            *(("trust.max_steps=400", "trust.patience=100") if find_fitted([kind])[kind].reads is None else ()),
            "selection.arms=[trust]",
            "splits.audit=false",
            *task.settings(task.rows),
        ],
    )
    run_part(config, "gen-0/grade-source")
    stages = recorded(Path(str(config.directory)))
    outputs = {name: stage["outputs"] for name, stage in stages.items()}
    return Labelled(
        task=task,
        config=config,
        examples=TableRef.from_json(outputs["prepare"]["tables"]["source"]),
        labels=TableRef.from_json(outputs["gen-0/label-source"]["labels"]),
        grades=TableRef.from_json(outputs["gen-0/grade-source"]["grades"]),
        teacher=ModelRef.from_json(stages["gen-0/label-source"]["inputs"]["model"]),
    )


def fitted(
    made: Labelled, deal: Deal, keeps: list[float], first: str, directory: Path
) -> tuple[TrustRef, dict[float, TrustRef]]:
    """Return the full function, and the first one for each share kept."""
    grades = io.read(made.grades)
    kept = io.write(grades.filter(pa.array(deal.is_fit(grades["row_id"].to_numpy()))), str(directory / "grades.lance"))
    config = made.config.trust
    full = fit(config.kind, config, made.labels, kept, deal.seed).save(directory / "full")
    of_prompt = config.model_copy(
        update={"states": ("prompt_last",), "columns": ("num_prompt_tokens",), "fit_on": "all"}
    )
    firsts = {}
    for keep in keeps:
        goal = write_cut_target(
            made.labels, full, deal.is_fit, keep=keep, uri=str(directory / f"wanted-{keep:g}.lance")
        )
        firsts[keep] = fit(first, of_prompt, made.labels, goal, deal.seed).save(directory / f"first-{keep:g}")
    return full, firsts


def fit(kind: str, config: TrustConfig, labels: TableRef, grades: TableRef, seed: int) -> Any:
    """Fit a function of the given kind."""
    torch.set_num_threads(2)
    return fit_rows(kind, read_rows(labels, grades, config, seed=seed), config, seed=seed, origin={})


def selected(pool: HeldOut, keep: float) -> npt.NDArray[np.int64]:
    """Return the places of the pool rows that the full pass selects."""
    best = np.argsort(-np.nan_to_num(pool.full_M, nan=-np.inf), kind="stable")[: round(keep * len(pool.full_M))]
    return best[np.isfinite(pool.full_M[best])]


def outcome(pool: HeldOut, keep: float, threshold: float | None) -> tuple[Outcome, str]:
    """Return what a threshold does to the pool, and which share of the selected rows it loses, with its interval."""
    return counted(pool, keep, pool.first_M < (-np.inf if threshold is None else threshold))


def counted(pool: HeldOut, keep: float, dropped_M: Bools) -> tuple[Outcome, str]:
    """Return what dropping these rows saves and loses."""
    chosen = selected(pool, keep)
    lost = compute_proportion(int(dropped_M[chosen].sum()), len(chosen))
    answers = int(pool.output_tokens_M[dropped_M].sum())
    total = int((pool.prompt_tokens_M + pool.output_tokens_M).sum())
    found = Outcome(
        float(dropped_M.mean()), lost.value, answers / total, answers / max(1, int(pool.output_tokens_M.sum()))
    )
    return found, f"lost {lost.value:.2%} ({lost.low:.2%} to {lost.high:.2%}) of {len(chosen):,} selected"


class Side(NamedTuple):
    """The result of a pass over rows."""

    tokens: int
    """Number of tokens of prompts and answers."""
    labels: dict[int, str | None]
    """Labels of the answered rows, by row id."""


def timing(made: Labelled, cut: FirstCutRule, row_ids_M: Int64s, chosen: set[int], num_pairs: int) -> str:
    """Return rows per CPU second of one thread with and without the first cut, tokens, and the lost selected rows."""
    torch.set_num_threads(1)
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
        gate=cut,
    )
    teacher = load_teacher(teacher_config, made.teacher)
    rows = io.take(made.examples, row_ids_M).to_pylist()
    sides: dict[bool, Side] = {}

    def side(with_cut: bool) -> Callable[[int], float]:
        def run(_: int) -> float:
            gate = PromptGate(cut, teacher_config.states) if with_cut else None
            begun = time.process_time()
            batches = list(label_rows(job, domain, teacher, rows, gate))
            seconds = time.process_time() - begun
            read = ["row_id", "label", "num_prompt_tokens", "num_output_tokens", *(["dropped"] if with_cut else [])]
            found = [row for batch in batches for row in batch.select(read).to_pylist()]
            tokens = sum(row["num_prompt_tokens"] + row["num_output_tokens"] for row in found)
            sides[with_cut] = Side(tokens, {row["row_id"]: row["label"] for row in found if not row.get("dropped")})
            return len(rows) / seconds

        return run

    found = measure(side(True), side(False), num_pairs)
    with_cut, without = sides[True], sides[False]
    differ = sum(without.labels[row] != label for row, label in with_cut.labels.items())
    lost = chosen - with_cut.labels.keys()
    return (
        f"the gate at work on {len(rows):,} pool rows: {len(rows) - len(with_cut.labels):,} dropped, "
        f"{with_cut.tokens:,} tokens, not {without.tokens:,} ({1 - with_cut.tokens / without.tokens:.1%} saved), "
        f"{len(lost)} of the {len(chosen)} selected ones among them lost, {differ} of {len(with_cut.labels):,} labels "
        f"differ; {found.line('CPU time with the first cut', 'rows/s', 1.0)}"
    )


def controls(held: HeldOut, pool: HeldOut, keep: float, seed: int) -> list[str]:
    """Return a first score that says nothing: the same for all rows, and drawn by lot."""
    rng, lines = np.random.default_rng(seed), []
    for name, draw in (("constant", lambda num: np.zeros(num)), ("by lot", lambda num: rng.random(num))):
        found = find_first_cut(
            held_with(held, draw(len(held.first_M))), keep=keep, loss=LOSSES[0], confidence=CONFIDENCE
        )
        shares, lost = outcome(held_with(pool, draw(len(pool.first_M))), keep, found["limit"])
        lines.append(
            f"  control, {name}: {describe_first_cut(found)}; on the pool {shares.dropped:.2%} dropped, {lost}"
        )
    return lines


def held_with(rows: HeldOut, first_M: npt.NDArray[np.float64]) -> HeldOut:
    """Return the rows with another first score."""
    return HeldOut(
        first_M=first_M, full_M=rows.full_M, prompt_tokens_M=rows.prompt_tokens_M, output_tokens_M=rows.output_tokens_M
    )


def pool_ids(made: Labelled, takes: Callable[[Int64s], Bools]) -> Int64s:
    """Return the ids of the pool rows, in the order of their scores (``collect_held_out``)."""
    ids_N = io.read(made.labels, columns=["row_id"], filter=io.make_answered_filter(made.labels))["row_id"].to_numpy()
    return ids_N[takes(ids_N)]


def one_seed(
    made: Labelled, seed: int, keeps: list[float], kind: str, answer: int, num_pairs: int
) -> dict[tuple[float, float], Outcome]:
    """Print the lines of a seed; return the outcome by share kept and loss."""
    num_rows, task = io.count(made.labels), made.task
    deal = Deal(seed, (task.fit_rows / num_rows, (task.fit_rows + task.held_out_rows) / num_rows))
    directory = Path(str(made.config.directory)) / f"seed-{seed}"
    directory.mkdir(exist_ok=True)
    full, firsts = fitted(made, deal, keeps, kind, directory)
    outcomes = {}
    for keep, first in firsts.items():
        held, pool = (collect_held_out(made.labels, first, full, takes) for takes in (deal.is_held_out, deal.is_pool))
        means = pool.prompt_tokens_M.mean(), pool.output_tokens_M.mean()
        print(
            f"seed {seed}, keep {keep:g}: {len(held.first_M):,} held-out rows, {len(pool.first_M):,} pool rows, "
            f"prompts of {means[0]:.1f} tokens, answers of {means[1]:.1f}",
            flush=True,
        )
        limits = {}
        for loss in LOSSES:
            found = find_first_cut(held, keep=keep, loss=loss, confidence=CONFIDENCE)
            limits[loss] = found["limit"]
            got, lost = outcome(pool, keep, found["limit"])  # on or off: what this loss allows
            outcomes[keep, loss] = got
            by_lot = np.random.default_rng(seed).random(len(pool.first_M)) < got.dropped
            even, lost_by_lot = counted(pool, keep, by_lot)
            print(f"  loss {loss:g}: {describe_first_cut(found)}")
            print(
                f"    on the pool: {got.dropped:.1%} dropped, {got.tokens:.2%} of all tokens and "
                f"{got.answer_tokens:.1%} of answer tokens saved, {lost}; with answers of {answer} tokens "
                f"{got.dropped * answer / (means[0] + answer):.1%} of all tokens"
            )
            print(
                f"    control, as many rows dropped by lot: {even.dropped:.1%} dropped, {even.tokens:.2%} of all "
                f"tokens saved, {lost_by_lot}",
                flush=True,
            )
        if (limit := limits[LOSSES[0]]) is not None and keep == keeps[-1] and num_pairs:
            ids_M = pool_ids(made, deal.is_pool)
            timed_M = ids_M[:TIMED_ROWS]
            chosen = set(ids_M[selected(pool, keep)].tolist()) & set(timed_M.tolist())
            cut = FirstCutRule(function=first, threshold=limit)
            print(f"    {timing(made, cut, timed_M, chosen, num_pairs)}", flush=True)
    print("\n".join(controls(held, pool, keeps[-1], seed)), flush=True)
    return outcomes


def main() -> None:
    """Print the lines of each seed, and means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="chess")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--keep", type=float, nargs="+", default=[0.05, 0.1])
    parser.add_argument("--answer", type=int, default=400)
    parser.add_argument("--kind", default="neural")
    parser.add_argument("--first", default="linear_probe")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    made = labelled(options.task, options.kind)
    settings = options.keep, options.first, options.answer, options.pairs
    found = [one_seed(made, seed, *settings) for seed in options.seeds]
    for keep, loss in found[0]:
        lines = []
        for name in Outcome._fields:
            mean = average_over_seeds([getattr(outcomes[keep, loss], name) for outcomes in found])
            lines.append(f"{name} {mean.value:.2%} ({mean.low:.2%} to {mean.high:.2%})")
        print(f"keep {keep:g}, loss {loss:g}, mean of {len(found)} seeds: {', '.join(lines)}")


if __name__ == "__main__":
    main()

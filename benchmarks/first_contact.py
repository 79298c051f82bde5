"""Ten tasks, from two files to a report by the docs' commands: ``python -m benchmarks.first_contact [NAME ...]``.

For each shape of ``tests/tasks/shapes.py``, two files are written, and the three commands of docs/own-data.md are run:
``curate init --data LABELLED UNLABELLED --model TEACHER``, ``validate``, ``run``. The configuration is not edited
between them. The teacher is a tiny model from scratch that has memorised right answers to half of the labelled rows and
wrong answers to the others, since trust cannot be learned if all labels are right or all are wrong. Tasks with labels
made elsewhere need no teacher.

A line of the table has the domain that ``init`` wrote; whether ``validate`` accepted it, and ``run`` ended in a report;
whether the domain and the run's own table have the generator's right answers; the seconds of the three commands in this
process, which has imported everything and started Ray; and the number of edited lines. The output of a failed command
is printed below its line. ``--no-run`` omits ``run``.
"""

import argparse
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from curation.cli import main as curate
from curation.config import RayConfig, RunConfig
from curation.config.load import load_config
from tests.tasks.reading import domain_of, examples, golds, golds_of_run
from tests.tasks.shapes import SHAPES, Shape, make

CONFIG, TEACHER = "curation.yaml", "teacher"
WORDS = r"[A-Za-z]+|[0-9]|[^A-Za-z0-9]"
"""Pattern of the tiny model's tokens."""
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 8192,
}
MOST_STEPS, LEAST_LOSS, BATCH = 400, 0.05, 60


class Contact(NamedTuple):
    """The outcome of a task without edits."""

    name: str
    wrote: str = "no"
    validated: str = "no"
    ran: str = "no"
    right: str = "no"
    seconds: float = 0.0
    edits: int = 0
    said: str = ""
    """End of the output of the command that failed; empty if none did."""

    @property
    def line(self) -> str:
        """The task's line of the table."""
        cells = (self.name, self.wrote, self.validated, self.ran, self.right, f"{self.seconds:.0f}", str(self.edits))
        return f"| {' | '.join(cells)} |"


HEAD = "| task | wrote | validated | ran | right | seconds | edits |\n| --- | --- | --- | --- | --- | ---: | ---: |"


def meet(name: str, folder: Path, *, runs: bool = True) -> Contact:
    """Give the commands for a shape in an empty folder, ``run`` only if told so."""
    shape, contact = make(name), Contact(name)
    labelled, unlabelled = shape.write(folder)
    with _inside(folder):
        words = ["init", "--data", labelled.name, unlabelled.name]
        if not shape.is_given:
            Path(TEACHER).mkdir()
            words += ["--model", TEACHER]
        code, seconds, said = _give(*words)
        if code:
            return contact._replace(seconds=seconds, said=said)
        config = load_config(CONFIG)
        is_right = golds(config) == shape.golds
        contact = contact._replace(wrote=config.domain.name, right="yes" if is_right else "no")
        if not shape.is_given:
            make_teacher(config, Path(TEACHER), shape, learns=runs)
        code, more, said = _give("validate", CONFIG)
        contact = contact._replace(seconds=seconds + more, validated="no" if code else "yes")
        if code:
            return contact._replace(said=said)
        if not runs:
            return contact._replace(ran="not tried")
        code, more, said = _give("run", CONFIG)
        contact = contact._replace(seconds=contact.seconds + more)
        if code:
            return contact._replace(said=said)
        is_right &= golds_of_run(Path("runs/curation")) == shape.golds
        return contact._replace(ran="yes", right="yes" if is_right else "no")


def _give(*words: str) -> tuple[int, float, str]:
    """Give a command; its exit code, seconds, and the end of what it said."""
    begun = time.monotonic()
    done = CliRunner().invoke(curate, list(words))
    trouble = f"\n{done.exception!r}" if done.exception is not None else ""
    return done.exit_code, time.monotonic() - begun, f"curate {' '.join(words)}: {done.output[-1500:]}{trouble}"


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def make_teacher(config: RunConfig, path: Path, shape: Shape, *, learns: bool = True) -> None:
    """Make the tiny model of a task; where it ``learns``, half of the rows right, and the others wrong."""
    from curation.models import create

    lessons = _lessons(config)
    shown = [word for lesson in lessons for word in _split("".join(lesson))]
    rows = [str(value) for row in (*shape.labelled, *shape.unlabelled) for value in row.values()]
    letters = [chr(number) for number in range(0x20, 0x7F)]
    words = tuple(dict.fromkeys([*letters, "\n", *shown, *(word for text in rows for word in _split(text))]))
    ref = create(path, family="qwen3", shape=SHAPE, words=words, pattern=WORDS, seed=1)
    if learns:
        _learn(ref.base, lessons)


def _split(text: str) -> list[str]:
    return re.findall(WORDS, text)


def _lessons(config: RunConfig) -> list[tuple[str, str]]:
    """Return the prompt of each labelled row with an answer, of every other row a wrong one."""
    domain, rows = domain_of(config), examples(config)
    answers = [domain.answer(gold, example) for example, gold in rows]
    lessons = []
    for place, ((example, _), answer) in enumerate(zip(rows, answers, strict=True)):
        others = domain.candidates(example) or answers[place:] + answers
        wrong = next(other for other in others if other != answer)
        lessons.append((domain.prompt(example), answer if place % 2 == 0 else wrong))
    return lessons


def _learn(path: str, lessons: Sequence[tuple[str, str]]) -> None:
    """Train a model on answers after their prompts until it knows nearly all of them, and save it."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    both = [(tokenizer(asked)["input_ids"], tokenizer(answer)["input_ids"]) for asked, answer in lessons]
    rows = [(asked + answer + [tokenizer.eos_token_id], len(asked)) for asked, answer in both]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    losses = {place: float("inf") for place in range(len(parts))}
    for _, place in zip(range(MOST_STEPS), cycle(range(len(parts)))):
        part = parts[place]
        width = max(len(ids) for ids, _ in part)
        ids_BT = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in part])
        mask_BT = torch.tensor([[at < len(ids) for at in range(width)] for ids, _ in part])
        wanted_BT = torch.tensor(
            [
                [word if at >= begin else -100 for at, word in enumerate(ids)] + [-100] * (width - len(ids))
                for ids, begin in part
            ]
        )
        loss = model(input_ids=ids_BT, attention_mask=mask_BT.long(), labels=wanted_BT).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[place] = loss.item()
        if max(losses.values()) < LEAST_LOSS:
            break
    model.save_pretrained(path)


def main() -> None:
    """Do the tasks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(SHAPES)} (default: all)")
    parser.add_argument("--no-run", action="store_true", help="only init and validate")
    options = parser.parse_args()
    from curation import session
    from curation.cluster.session import local_or_cluster

    found = []
    with ExitStack() as stack:
        if not options.no_run:
            stack.enter_context(local_or_cluster(RayConfig(num_cpus=2)))
            stack.enter_context(session())
        for name in options.names or SHAPES:
            with tempfile.TemporaryDirectory() as folder:
                found.append(meet(name, Path(folder), runs=not options.no_run))
            print(found[-1].line, *filter(None, [found[-1].said]), sep="\n", flush=True)
    print("", HEAD, *(contact.line for contact in found), sep="\n")


if __name__ == "__main__":
    main()

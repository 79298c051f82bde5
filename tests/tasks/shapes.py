"""Ten public shapes of tasks, each as a labelled and an unlabelled file of rows that are made here, from a seed.

Columns, file formats and labels are those in which such data sets are published; texts are of words below (CC0).
``SHAPES`` has them by name.
"""

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chess

Row = dict[str, Any]
SEED = 57
NUM_LABELLED, NUM_UNLABELLED = 60, 40
GOOD = ("a joy from start to end", "worth every minute", "warm and funny", "the best of the year", "finely acted")
BAD = ("dull and far too long", "a waste of an evening", "badly acted", "noisy and empty", "the worst of the year")
WORKS = ("film", "play", "novel", "album", "series", "game", "show", "concert")
THINGS = ("card", "transfer", "account", "refund", "invoice", "password", "statement", "loan")
ACTIONS = {
    "lost": "I cannot find my {} anywhere",
    "late": "the {} should have come a week ago",
    "wrong": "there is a mistake in my {}",
    "new": "how do I get another {}",
    "closed": "why did you cancel my {}",
}
TOPICS = {"card": "my card does not work", "fee": "you took a fee", "app": "the app shows an error"}
KINDS = {
    "animal": ("bear", "cow", "crab", "duck", "fox", "goat", "horse", "wolf"),
    "colour": ("black", "blue", "brown", "green", "grey", "pink", "red", "white"),
    "fruit": ("apple", "cherry", "fig", "grape", "lemon", "melon", "peach", "pear"),
    "tool": ("axe", "chisel", "drill", "hammer", "knife", "rake", "saw", "spade"),
}
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gil", "Hana")
OUTCOMES = {
    "solved": ("Have you started it again?", "Yes, now it works."),
    "returned": ("Do you want to send it back?", "Yes, send me the label."),
    "open": ("We will look at it.", "Then I shall wait."),
}


class Shape(NamedTuple):
    """A task as its user has it: two files, and what is right."""

    domain: str
    """The domain that fits."""
    ending: str
    """The files' format: csv or jsonl."""
    labelled: list[Row]
    unlabelled: list[Row]
    golds: list[str]
    """What is right of each labelled row, as the domain says it; of a pair the better answer."""
    is_given: bool = False
    """Whether the rows have labels made elsewhere, so that no model has to be named."""

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files into a folder."""
        return _write(folder / f"labelled.{self.ending}", self.labelled), _write(
            folder / f"unlabelled.{self.ending}", self.unlabelled
        )


def make(name: str, seed: int = SEED) -> Shape:
    """Return a shape of ``SHAPES``; a seed makes the same rows each time."""
    return SHAPES[name](random.Random(f"{name} {seed}"))


def _write(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def _shape(
    domain: str,
    ending: str,
    rows: Sequence[tuple[Row, str]],
    hidden: str,
    num_labelled: int = NUM_LABELLED,
) -> Shape:
    """Split rows with what is right of each; an unlabelled row lacks the column ``hidden``."""
    labelled, others = rows[:num_labelled], rows[num_labelled:]
    unlabelled = [{name: value for name, value in row.items() if name != hidden} for row, _ in others]
    return Shape(domain, ending, [row for row, _ in labelled], unlabelled, [gold for _, gold in labelled])


def _sentiment(rng: random.Random) -> Shape:
    """Reviews, positive or negative (the columns of IMDB)."""
    rows = []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        label = ("positive", "negative")[number % 2]
        words = " and ".join(rng.sample(GOOD if label == "positive" else BAD, 2))
        rows.append(({"review": f"The {rng.choice(WORKS)} number {number} is {words}.", "sentiment": label}, label))
    return _shape("classification", "csv", rows, "sentiment")


def _intents(rng: random.Random) -> Shape:
    """Questions to a bank, of 40 classes with underscores (the columns of BANKING77)."""
    classes = [(thing, action) for thing in THINGS for action in ACTIONS]
    rows = []
    for number in range(5 * len(classes) + NUM_UNLABELLED):
        thing, action = classes[number % len(classes)]
        text = f"{rng.choice(('Hello,', 'Please help,', 'Dear bank,'))} {ACTIONS[action].format(thing)} ({number})"
        rows.append(({"text": text, "category": f"{thing}_{action}"}, f"{thing}_{action}"))
    return _shape("classification", "csv", rows, "category", 5 * len(classes))


def _several_labels(rng: random.Random) -> Shape:
    """Messages about several topics or none, as a text with commas."""
    rows = []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        topics = [name for place, name in enumerate(sorted(TOPICS)) if number >> place & 1]
        said = " and ".join(TOPICS[name] for name in topics) or "where is your office"
        label = ", ".join(topics) or "none"
        rows.append(({"id": number, "text": f"{rng.choice(NAMES)} writes ({number}): {said}", "topics": label}, label))
    return _shape("classification", "csv", rows, "topics")


def _letters(rng: random.Random) -> Shape:
    """Questions with four options in columns of their own, and the right one's letter (MMLU as CSV)."""
    rows = []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        kinds = rng.sample(sorted(KINDS), 4)
        place = rng.randrange(4)
        options = dict(zip("ABCD", (rng.choice(KINDS[kind]) for kind in kinds), strict=True))
        question = f"{number}. Which of these is of the kind {kinds[place]}?"
        rows.append(({"question": question, **options, "answer": "ABCD"[place]}, "ABCD"[place]))
    return _shape("mcqa", "csv", rows, "answer")


def _sums(rng: random.Random) -> Shape:
    """Sums with their result."""
    numbers = rng.sample([(one, other) for one in range(10, 100) for other in range(10, 100)], 100)
    rows = [({"problem": f"{a} + {b} = ?", "answer": str(a + b)}, str(a + b)) for a, b in numbers]
    return _shape("math", "csv", rows, "answer")


def _extraction(rng: random.Random) -> Shape:
    """Notes, and the object that is to be read out of each."""
    rows = []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        found = {"name": rng.choice(NAMES), "paid": rng.random() < 0.5}
        said = "has paid" if found["paid"] else "has not paid"
        text = f"Note {number}: {found['name']} {said}."
        rows.append(({"text": text, "fields": found}, json.dumps(found)))
    return _shape("text", "jsonl", rows, "fields")


def _pairs(rng: random.Random) -> Shape:
    """Preferences as TRL reads them; the pairs without one have their answers in columns that say nothing."""
    labelled, unlabelled, golds = [], [], []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        kind, other = rng.sample(sorted(KINDS), 2)
        prompt, right, wrong = f"Name a {kind} ({number}).", rng.choice(KINDS[kind]), rng.choice(KINDS[other])
        if number < NUM_LABELLED:
            labelled.append({"prompt": prompt, "chosen": right, "rejected": wrong})
            golds.append(right)
        else:
            first, second = rng.sample((right, wrong), 2)
            unlabelled.append({"prompt": prompt, "first": first, "second": second})
    return Shape("pair", "jsonl", labelled, unlabelled, golds)


def _given(rng: random.Random) -> Shape:
    """Texts that an API has labelled, with its confidence; people labelled some of them, too."""
    rows = []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        label = ("negative", "positive")[number % 2]
        text = f"The {rng.choice(WORKS)} number {number} is {rng.choice(GOOD if label == 'positive' else BAD)}."
        is_right = rng.random() < 0.75
        predicted = label if is_right else ("positive", "negative")[number % 2]
        confidence = round(rng.uniform(0.6, 1.0) if is_right else rng.uniform(0.5, 0.9), 3)
        rows.append(({"text": text, "prediction": predicted, "confidence": confidence, "label": label}, label))
    return _shape("classification", "csv", rows, "label")._replace(is_given=True)


def _chat(rng: random.Random) -> Shape:
    """Conversations as lists of turns, and how each ended."""
    rows = []
    for number in range(NUM_LABELLED + NUM_UNLABELLED):
        label = sorted(OUTCOMES)[number % 3]
        asked, said = OUTCOMES[label]
        turns = [
            {"role": "user", "content": f"My {rng.choice(WORKS)} number {number} does not start."},
            {"role": "assistant", "content": asked},
            {"role": "user", "content": said},
        ]
        rows.append(({"messages": turns, "label": label}, label))
    return _shape("classification", "jsonl", rows, "label")


def _chess(rng: random.Random) -> Shape:
    """Positions of random games in Lichess's format, to which the right move is the one that takes most."""
    labelled, unlabelled, golds = [], [], []
    while len(labelled) + len(unlabelled) < NUM_LABELLED + NUM_UNLABELLED:
        board = chess.Board()
        for _ in range(rng.randrange(8, 24)):
            board.push(rng.choice(sorted(board.legal_moves, key=str)))
            if board.is_game_over():
                break
        moves = sorted(board.legal_moves, key=str)
        if not moves:
            continue
        position, asked = board.fen(), rng.choice(moves)
        board.push(asked)
        takes = {move: board.piece_type_at(move.to_square) or 0 for move in board.legal_moves}
        if not takes:
            continue
        best = max(sorted(takes, key=str), key=takes.__getitem__)
        if len(labelled) < NUM_LABELLED:
            labelled.append({"FEN": position, "Moves": f"{asked.uci()} {best.uci()}"})
            golds.append(best.uci())
        else:
            unlabelled.append({"FEN": position, "Moves": asked.uci()})
    return Shape("chess", "csv", labelled, unlabelled, golds)


SHAPES: dict[str, Callable[[random.Random], Shape]] = {
    "sentiment": _sentiment,
    "intents": _intents,
    "several labels": _several_labels,
    "multiple choice": _letters,
    "sums": _sums,
    "extraction": _extraction,
    "pairs": _pairs,
    "given labels": _given,
    "chat": _chat,
    "chess": _chess,
}

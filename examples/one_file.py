"""The method in one file, without the engine: ``python examples/one_file.py`` (CPU, offline, two minutes).

A weak teacher labels positions of chess with a mate in one. A trust function learns, from the teacher's hidden states
of labelled rows, when a label is right. The most trusted labels teach a stronger student. ``curate run`` does this for
millions of rows on a cluster; a test holds its labels, states, trust, cut and selection against those of this file.

Sections are the paper's (arXiv 2606.01000). Capitals that end a name are an array's shape: N rows, D numbers each.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import chess
import numpy as np
import pyarrow.parquet as pq
import torch
from peft import LoraConfig, get_peft_model
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup
from transformers.utils.logging import disable_progress_bar

HERE = Path(__file__).parent
SEED = 0
SIZES = {"adapt": 1_000, "source": 1_600, "calibration": 500, "test": 700}
"""Number of rows of each split; the pool has all other rows."""
BUDGET, BATCH, TRAIN_BATCH = 600, 64, 32
ALPHA, DELTA = 0.3, 0.1
"""Maximum share of wrong labels in a certified cut, which may fail with probability ``DELTA``."""


class Row(NamedTuple):
    """A chess position in which some move mates."""

    prompt: str
    moves: list[str]
    """The legal moves: the answers that the teacher may give."""
    mates: list[str]
    """The gold label, which only labelled rows (source, calibration) and tests may look at."""


def read_rows(path: Path) -> list[Row]:
    """Return the mates in one among Lichess puzzles, whose first move is the opponent's."""
    rows = []
    for puzzle in pq.read_table(path, columns=["fen", "moves"]).to_pylist():
        board, played = chess.Board(puzzle["fen"]), puzzle["moves"].split()
        if len(played) == 2:
            board.push_uci(played[0])
            legal = sorted(board.legal_moves, key=chess.Move.uci)
            if mates := [move for move in legal if board.gives_check(move) and board.san(move).endswith("#")]:
                rows.append(Row(ask(board), *([f" {move.uci()}" for move in part] for part in (legal, mates))))
    return rows


def ask(board: chess.Board) -> str:
    """Return the paper's prompt of a position (App. "Strategy Games")."""
    castling, en_passant = board.fen(en_passant="fen").split()[2:4]
    white, black = (
        "; ".join(
            f"{chess.square_name(square)} {chess.piece_name(piece.piece_type).capitalize()}"
            for square, piece in sorted(board.piece_map().items())
            if piece.color == colour
        )
        for colour in (chess.WHITE, chess.BLACK)
    )
    return (
        f"Side to move: {'White' if board.turn else 'Black'}\nCastling rights: {castling}\nEn passant: {en_passant}\n"
        f"Halfmove: {board.halfmove_clock} Fullmove: {board.fullmove_number}\n"
        f"White: {white}\nBlack: {black}\nBest move:"
    )


def split(rows: list[Row]) -> dict[str, list[Row]]:
    """Assign rows to splits at random: no row is in two."""
    order = np.random.default_rng(SEED).permutation(len(rows))
    parts = np.split(order, np.cumsum([*SIZES.values()]))
    return {name: [rows[place] for place in part] for name, part in zip([*SIZES, "pool"], parts, strict=True)}


class Answers(NamedTuple):
    """A model's answers to rows."""

    labels: list[str]
    states_ND: torch.Tensor
    """The state of each answer's last token in the last layer."""
    logprob_N: np.ndarray
    """The mean log-probability of an answer's tokens: internal confidence, the baseline that costs nothing."""
    right_N: np.ndarray
    """Whether each label is right; only labelled rows and the report may look at it."""


class Model:
    """A causal language model that answers rows and learns from pairs of prompt and answer."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def answer(self, rows: list[Row]) -> Answers:
        """Answer rows greedily among their possible answers, and keep what trust reads of each answer."""
        self.net.eval()
        parts = [self._answer(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
        labels, states, logprobs = zip(*parts, strict=True)
        given = [label for of_part in labels for label in of_part]
        right = [label in row.mates for label, row in zip(given, rows, strict=True)]
        return Answers(given, torch.cat(states), np.concatenate(logprobs), np.array(right))

    @torch.inference_mode()
    def _answer(self, rows: list[Row]) -> tuple[list[str], torch.Tensor, np.ndarray]:
        """Take the likeliest token that still leads to a possible answer, until each row has one."""
        prompts, answers = self._encode([row.prompt for row in rows]), [[] for _ in rows]
        options = [self._encode(row.moves) for row in rows]
        while True:
            ids_BT, mask_BT = self._padded([given + answer for given, answer in zip(prompts, answers, strict=True)])
            found = self.net(ids_BT, attention_mask=mask_BT, output_hidden_states=True)
            if all(answer in of_row for answer, of_row in zip(answers, options, strict=True)):
                break
            for answer, of_row, logit_V in zip(answers, options, found.logits[:, -1], strict=True):
                ways = sorted({way[len(answer)] for way in of_row if way[: len(answer)] == answer != way})
                answer += [ways[int(logit_V[ways].argmax())]] if ways else []
        labels = [row.moves[of_row.index(way)] for row, of_row, way in zip(rows, options, answers, strict=True)]
        logprob_BT = found.logits[:, :-1].log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
        means = [float(row_T[-len(answer) :].mean()) for row_T, answer in zip(logprob_BT, answers, strict=True)]
        return labels, found.hidden_states[-1][:, -1], np.array(means)

    def learn(self, rows: list[Row], labels: list[str], *, epochs: int, rate: float, lora: bool = False) -> None:
        """Fine-tune on the labels' tokens and the end token (App. "Training Details")."""
        torch.manual_seed(SEED)
        if lora:
            self.net = get_peft_model(self.net, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
        weights = [weight for weight in self.net.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=rate)
        steps = epochs * -(-len(rows) // TRAIN_BATCH)
        schedule = get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
        prompts = self._encode([row.prompt for row in rows])
        targets = [[*label, self.tokenizer.eos_token_id] for label in self._encode(labels)]
        self.net.train()
        for epoch in range(epochs):
            order = np.random.default_rng([SEED, epoch]).permutation(len(rows))
            for part in np.split(order, range(TRAIN_BATCH, len(order), TRAIN_BATCH)):
                ids_BT, mask_BT = self._padded([prompts[place] + targets[place] for place in part])
                learned_BT = ids_BT.clone()
                for place, learned_T in zip(part, learned_BT, strict=True):
                    learned_T[: -len(targets[place])] = -100
                self.net(ids_BT, attention_mask=mask_BT, labels=learned_BT).loss.backward()
                nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return tokens; encode prompt and answer apart, as some tokenizers would merge tokens across their border."""
        return self.tokenizer([*texts], add_special_tokens=False)["input_ids"]

    def _padded(self, texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch of tokens, [B, T], padded on the left, and the mask of those that are no padding."""
        padded = self.tokenizer.pad({"input_ids": texts}, padding_side="left", return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]


class Block(nn.Module):
    """A residual block, x + dropout(SwiGLU(RMSNorm(x))), which a row skips at a rate while it learns."""

    def __init__(self, width: int, skipped: float, dropout: float = 0.2, expansion: int = 2) -> None:
        super().__init__()
        self.skipped = skipped
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.w1 = nn.Linear(width, expansion * width, bias=False)
        self.w3 = nn.Linear(width, expansion * width, bias=False)
        self.w2 = nn.Linear(expansion * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_NW: torch.Tensor) -> torch.Tensor:
        """Return the block's output, [N, W]."""
        y_NW = self.norm(x_NW)
        y_NW = self.dropout(self.w2(nn.functional.silu(self.w1(y_NW)) * self.w3(y_NW)))
        if self.training:
            y_NW = y_NW * (torch.rand(len(y_NW), 1) >= self.skipped) / (1 - self.skipped)
        return x_NW + y_NW


class TrustNet(nn.Module):
    """A network from hidden states [N, D] to logits [N], whose sigmoid is the trust that a label is right."""

    def __init__(self, states_ND: torch.Tensor, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.mean_D, self.scale_D = states_ND.mean(0), states_ND.std(0, correction=0).clamp(min=1e-6)
        self.input = nn.Linear(states_ND.shape[1], width)
        self.blocks = nn.Sequential(*(Block(width, skipped=0.1 * (b + 1) / depth) for b in range(depth)))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 1)

    def forward(self, states_ND: torch.Tensor) -> torch.Tensor:
        """Return the logit of each row, [N]."""
        x_NW = self.blocks(self.input((states_ND - self.mean_D) / self.scale_D))
        return self.head(self.norm(x_NW)).squeeze(-1)


def fit_trust(states_ND: torch.Tensor, right_N: np.ndarray, validates_N: np.ndarray, seed: int) -> TrustNet:
    """Fit a trust function to whether the teacher's labels are right; keep the epoch of the best validation AUC."""
    fit_F, goal_N = np.flatnonzero(~validates_N), torch.from_numpy(right_N).float()
    share = goal_N[fit_F].mean()
    weight_N = torch.where(goal_N > 0, 0.5 / share, 0.5 / (1 - share)) ** 0.5  # the class reweighting coefficient
    torch.manual_seed(seed)
    net = TrustNet(states_ND[fit_F])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    best, kept, batch, steps = -1.0, deepcopy(net.state_dict()), 64, 0
    for epoch in range(20):
        torch.manual_seed(seed + steps)
        net.train()
        order_F = np.random.default_rng([seed, epoch]).permutation(fit_F)
        for part in np.split(order_F, range(batch, len(order_F), batch)):
            logit_B, weight_B = net(states_ND[part]), weight_N[part]
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(logit_B, goal_N[part], weight=weight_B).backward()
            optimizer.step()
            steps += 1
        if (auc := roc_auc_score(right_N[validates_N], score(net, states_ND[validates_N]))) > best:
            best, kept = auc, deepcopy(net.state_dict())
    net.load_state_dict(kept)
    return net


@torch.inference_mode()
def score(net: TrustNet, states_ND: torch.Tensor) -> np.ndarray:
    """Return the logit of each row, [N]."""
    return net.eval()(states_ND).numpy()


def select(score_N: np.ndarray, n: int) -> np.ndarray:
    """Return the indices of the n rows with the highest scores, the best first."""
    return np.argsort(-score_N, kind="stable")[:n]


def certify(score_M: np.ndarray, right_M: np.ndarray, pool_N: np.ndarray, alpha: float, delta: float) -> float | None:
    """Return the lowest score at or above which at most ``alpha`` of the pool's labels are wrong, or None.

    Cuts at quantiles of the pool are tested from the strictest on, each by an exact binomial test at level ``delta`` on
    labelled rows that nothing was fitted on; the first that fails ends the search. (The paper: by Hoeffding's bound.)
    """
    needed = next(n for n in range(2, len(pool_N) + 2) if stats.binom.cdf(1, n, alpha) <= delta)
    certified, ranked_N = None, np.sort(pool_N)[::-1]
    for percent in [*range(5, 100), 100]:
        if percent < 100 and percent * len(score_M) < 100 * needed:
            continue  # so strict a cut would keep too few labelled rows to pass with one error
        cut = ranked_N[max(1, -(-percent * len(pool_N) // 100)) - 1]
        kept_M = score_M >= cut
        if not kept_M.any() or stats.binom.cdf((~right_M[kept_M]).sum(), kept_M.sum(), alpha) > delta:
            break
        certified = float(cut)
    return certified


def main() -> None:
    """Run the method once and print what each student has learned."""
    begun = time.monotonic()
    disable_progress_bar()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:4.0f} s  {text}", flush=True)

    splits = split(read_rows(HERE / "data" / "puzzles.parquet"))
    say("rows: " + ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items()))

    teacher = Model(HERE / "bases" / "teacher")
    teacher.learn(splits["adapt"], [row.mates[0] for row in splits["adapt"]], epochs=2, rate=5e-4)
    source, calibration, pool = (teacher.answer(splits[name]) for name in ("source", "calibration", "pool"))
    say(f"teacher: {pool.right_N.mean():.1%} of its labels in the pool are right")

    validates_N = np.random.default_rng(SEED).random(len(source.labels)) < 0.2
    net = fit_trust(source.states_ND, source.right_N, validates_N, SEED)
    trust_N, draw_N = score(net, pool.states_ND), np.random.default_rng(SEED).random(len(pool.labels))
    for name, score_N in (("trust", trust_N), ("internal confidence", pool.logprob_N), ("a uniform draw", draw_N)):
        purity = pool.right_N[select(score_N, BUDGET)].mean()
        say(f"{name}: AUC {roc_auc_score(pool.right_N, score_N):.3f} in the pool, {purity:.1%} of the best are right")
    cut = certify(score(net, calibration.states_ND), calibration.right_N, trust_N, ALPHA, DELTA)
    certified_N = trust_N >= (np.inf if cut is None else cut)
    say(f"{certified_N.sum():,} labels are certified as {1 - ALPHA:.0%} right: {pool.right_N[certified_N].mean():.1%}")

    gold, student = [row.mates[0] for row in splits["pool"]], HERE / "bases" / "student"
    say(f"the students' base: {Model(student).answer(splits['test']).right_N.mean():.1%} of the test")
    for name, score_N, labels in (
        ("a uniform draw", draw_N, pool.labels),
        ("trust", trust_N, pool.labels),
        ("gold labels of the same rows", trust_N, gold),
    ):
        places, model = select(score_N, BUDGET), Model(student)
        rows = [splits["pool"][place] for place in places]
        model.learn(rows, [labels[place] for place in places], epochs=3, rate=3e-3, lora=True)
        say(f"student of {name}: {model.answer(splits['test']).right_N.mean():.1%} of the test")


if __name__ == "__main__":
    main()

"""The loop that fits a network as trust function (paper, section "Neural Trust Functions").

The paper leaves open, and we chose: what the class weight multiplies (:func:`compute_loss_weights`), one AdamW group
for all parameters, a constant learning rate, batches reshuffled each epoch, and a bound on optimizer steps instead of
epochs, so that a small source gets as many steps as a large one. Our additions, which can be switched off: early
stopping on validation AUC, standardised inputs, calibration.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from curation.arrays import Bools, Floats, Int64s
from curation.config import TrustConfig
from curation.errors import RunFailedError
from curation.hashing import derive
from curation.json_types import Json
from curation.metrics import compute_auc_value
from curation.trust.calibration import fit_calibration
from curation.trust.neural import Net, TrustNet
from curation.trust.parts import FIT, REPEAT, VALIDATION
from curation.trust.states import HeldOutScores, StateTrust

Trust = TypeVar("Trust", bound=StateTrust)

EVALUATE_ROWS = 4096  # number of rows of one forward pass outside training
MOMENT_ROWS = 512  # number of rows that are summed at a time, so that their float64 copies stay in a core's cache
MIN_STEPS, MIN_EVALUATIONS = 10, 20
"""Validation happens after each epoch, or after ``MIN_STEPS`` steps where an epoch has fewer. A fit whose
``TrustConfig.max_steps`` would then bring fewer than ``MIN_EVALUATIONS`` validates more often."""


class LabelledRows(NamedTuple):
    """Labelled rows with a hidden state, ascending by row id."""

    hidden_ND: Floats
    """The inputs of ``TrustConfig.inputs``, concatenated: in the states' stored type, with scalar columns in
    float32."""
    correct_N: Bools
    part_N: npt.NDArray[np.int8]
    """The part of each row (``curation.trust.parts``); a row with any other number is in no part."""
    sizes: tuple[int, ...]  # width of each of ``TrustConfig.inputs``; D is their sum
    row_ids_N: Int64s
    numbers_NK: npt.NDArray[np.float64]
    """The numbers of the answers that a stack reads, one column each, NaN for null; no columns if none are read."""
    numbers: tuple[str, ...] = ()
    """The names of the K numbers (``schemas.NUMBERS``); with ``classes`` one is the place of a row's label there."""
    classes: tuple[str, ...] = ()  # labels, if they are a closed set that is read
    gold_N: npt.NDArray[np.float64] | None = None
    """The place of the gold label among ``classes``, NaN if unknown; None without ``classes``."""
    cluster_N: Int64s | None = None
    """The cluster of each row, which no fold divides (``Graded.cluster_N``); None if each row is its own."""

    @property
    def num_repeats(self) -> int:
        """The number of rows that repeat the question of an earlier one; no fit reads them."""
        return int((self.part_N == REPEAT).sum())

    def held_out(self, places_M: Int64s, raw_M: npt.NDArray[np.float32]) -> HeldOutScores:
        """Return the held-out scores of rows at these places; all other rows of the fit, and repeats, have none."""
        raw_N = np.full(len(self.part_N), np.nan, dtype=np.float32)
        raw_N[places_M] = raw_M
        listed_N = (self.part_N >= 0) | (self.part_N == REPEAT)
        return HeldOutScores(self.row_ids_N[listed_N], raw_N[listed_N])

    def places(self, part: int) -> Int64s:
        """Return the positions of the rows of a part, ascending."""
        return np.flatnonzero(self.part_N == part)


Note = Callable[[int, int, str], None]
"""A function that receives the steps done, their maximum, and words on the quality of the fit so far."""


def drop_note(done: int, total: int, words: str) -> None:
    """Do nothing."""


def note_part(note: Note, part: int, parts: int) -> Note:
    """Return the note of a trust function's network ``part``, of ``parts`` networks."""
    return lambda done, total, words: note(part * total + done, parts * total, words)


def fit_arrays(
    rows: LabelledRows,
    config: TrustConfig,
    new_net: Callable[[], Net],
    make: Callable[[Net, Sequence[str], Json], Trust],
    *,
    seed: int,
    origin: Mapping[str, object],
    note: Note = drop_note,
) -> Trust:
    """Return what ``make`` makes of a fitted network (in evaluation mode on the CPU), its inputs and its record.

    ``new_net`` makes the network, with random weights from torch's own generator; it is fitted on a GPU if ``config``
    requests one, and calibrated on the validation rows. The record is ``origin``, the seed, numbers of the rows and the
    course of the fit, with one entry per evaluation: ``steps`` done, ``losses`` (mean class-weighted cross-entropy
    since the last one, with dropout) and ``validation_aucs``. ``best`` is the index of the evaluation whose weights are
    kept: that of the best AUC, or without early stopping the last.

    Raises:
        RunFailedError: the loss is no longer finite.
        DegenerateSourceError: the labels of the validation rows are all right, or all are wrong.
    """
    start = time.monotonic()
    fit_F, validation_V = rows.places(FIT), rows.places(VALIDATION)
    correct_F, correct_V = rows.correct_N[fit_F], rows.correct_N[validation_V]
    torch.manual_seed(derive(seed, "trust weights"))
    net = new_net()
    if config.standardise:
        net.mean_D, net.scale_D = compute_moments(rows.hidden_ND, fit_F)
    net.to("cuda" if config.gpus_per_worker and torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    kept: dict[str, Tensor] = net.state_dict()
    weights = compute_loss_weights(correct_F, config.class_weight)
    steps_per_epoch = -(-len(fit_F) // config.batch_size)
    interval = min(max(steps_per_epoch, MIN_STEPS), -(-config.max_steps // MIN_EVALUATIONS))
    course: dict[str, list[float]] = {"steps": [], "losses": [], "validation_aucs": []}
    done, best, waited = 0, 0, 0.0
    while done < config.max_steps and (config.patience is None or waited < config.patience):
        stop = min(done + interval, config.max_steps)
        torch.manual_seed(derive(seed, f"trust step {done} shard 0"))  # the name dates from divided fits
        loss = _run_steps(net, optimizer, rows, _iter_batches(fit_F, config.batch_size, seed, done, stop), weights)
        if not np.isfinite(loss):
            raise RunFailedError(
                f"steps {done + 1} to {stop}: the loss is {loss}; lower trust.learning_rate or set trust.standardise"
            )
        auc = compute_auc_value(_compute_logits(net, rows.hidden_ND, validation_V), correct_V)
        if config.patience is None or auc > max(course["validation_aucs"], default=-1.0):
            best, state = len(course["steps"]), net.state_dict()
            kept = state if config.patience is None else {name: tensor.clone() for name, tensor in state.items()}
        for name, value in zip(course, (stop, loss, auc), strict=True):
            course[name].append(value)
        done, waited = stop, stop - course["steps"][best]
        note(stop, config.max_steps, f"AUC {auc:.3f} on validation rows")
    net.load_state_dict(kept)
    logit_V = _compute_logits(net, rows.hidden_ND, validation_V)
    record: Json = {
        "seed": seed,
        "num_fit": len(fit_F),
        "num_validation": len(validation_V),
        "num_repeats": rows.num_repeats,
        "share_right_fit": float(correct_F.mean()),
        "share_right_validation": float(correct_V.mean()),
        **course,
        "best": best,
        "seconds": time.monotonic() - start,
    }
    trust = make(net.cpu().eval(), config.inputs, {**origin, **record})
    trust.calibration = fit_calibration(logit_V, correct_V, config.calibration)
    trust.held_out = rows.held_out(validation_V, logit_V)
    return trust


def compute_loss_weights(correct_N: Bools, strength: float) -> tuple[float, float]:
    """Return the loss weights of wrong and right labels: class c weighs (N / (2 N_c)) ** strength.

    This is our reading of the paper's "class reweighting coefficient": 0 gives all rows the same weight, 1 both
    classes the same total weight.
    """
    num_right = int(correct_N.sum())
    wrong, right = (float((len(correct_N) / (2 * n)) ** strength) for n in (len(correct_N) - num_right, num_right))
    return wrong, right


def compute_weighted_loss(logit_N: Tensor, correct_N: Tensor, weights: tuple[float, float]) -> Tensor:
    """Return a batch's class-weighted cross-entropy, the mean over its rows."""
    weight_N = torch.where(correct_N > 0, weights[1], weights[0])
    loss = nn.functional.binary_cross_entropy_with_logits(logit_N, correct_N, weight=weight_N, reduction="sum")
    return loss / len(logit_N)


def compute_moments(hidden_ND: Floats, rows_F: Int64s) -> tuple[Tensor, Tensor]:
    """Return mean and population standard deviation of the rows, float32 [D] each; a constant feature gets scale 1."""
    chunks = [rows_F[start : start + MOMENT_ROWS] for start in range(0, len(rows_F), MOMENT_ROWS)]
    mean_D = sum(torch.from_numpy(hidden_ND[chunk]).double().sum(0) for chunk in chunks) / len(rows_F)
    squares = (torch.from_numpy(hidden_ND[chunk]).double().sub_(mean_D).square_().sum(0) for chunk in chunks)
    scale_D = (cast(Tensor, sum(squares)) / len(rows_F)).sqrt()
    return cast(Tensor, mean_D).float(), torch.where(scale_D > 1e-6, scale_D, 1.0).float()


def _iter_batches(fit_F: Int64s, batch_size: int, seed: int, done: int, stop: int) -> Iterator[Int64s]:
    """Yield the rows of each step after ``done`` up to ``stop``: the fit rows in a new order each epoch."""
    order_F = fit_F
    for step in range(done, stop):
        epoch, place = divmod(step, -(-len(fit_F) // batch_size))
        if place == 0 or step == done:
            order_F = np.random.default_rng([seed, epoch]).permutation(fit_F)
        yield order_F[place * batch_size : (place + 1) * batch_size]


def _run_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: LabelledRows,
    batches: Iterable[Int64s],
    weights: tuple[float, float],
) -> float:
    """Do one step per batch; return the mean loss over their rows."""
    model.train()
    device = next(model.parameters()).device
    loss_sum, num_rows = torch.zeros((), device=device), 0
    for batch_B in batches:
        logit_N = model(torch.from_numpy(rows.hidden_ND[batch_B]).to(device))
        correct_N = torch.from_numpy(rows.correct_N[batch_B]).to(device, torch.float32)
        loss = compute_weighted_loss(logit_N, correct_N, weights)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        loss_sum += loss.detach() * len(batch_B)
        num_rows += len(batch_B)
    return float(loss_sum) / num_rows


@torch.inference_mode()
def _compute_logits(net: TrustNet, hidden_ND: Floats, rows_V: Int64s) -> npt.NDArray[np.float32]:
    """Return the logit of each row, [V]."""
    net.eval()
    logit_V = torch.zeros(len(rows_V), device=net.head.weight.device)
    for start in range(0, len(rows_V), EVALUATE_ROWS):
        part = slice(start, start + EVALUATE_ROWS)
        logit_V[part] = net(torch.from_numpy(hidden_ND[rows_V[part]]).to(logit_V.device))
    return logit_V.cpu().numpy()

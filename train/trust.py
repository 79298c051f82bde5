"""Fit trust functions, refs in and a ref out: the neural one through Ray Train (``train.trust_loop`` is its loop).

A killed worker is replaced and goes on from the last checkpoint beside ``output``; on several nodes that is a directory
all of them share, or an object store.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
import ray.train
import ray.train.torch
import torch
from torch import Tensor, nn

from curation import store
from curation.config import TrustConfig
from curation.domains.grading import read_grades
from curation.errors import DegenerateSourceError
from curation.hashing import hash_unit
from curation.places import Place, place
from curation.refs import TableRef, TrustRef, fingerprint
from curation.tables import state_column
from curation.trust import saved
from curation.trust.linear_probe import fit_linear_probe
from curation.trust.neural import NeuralTrust, read_states
from train.launch import launch
from train.trust_loop import Floats, Rows, Shard, fit_arrays

CHECKPOINT_SECONDS = 60.0
"""A fit that lasts longer is checkpointed at the end of the first epoch past every such span."""

log = logging.getLogger(__name__)


def fit_trust(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place) -> TrustRef:
    """Fit on the graded rows and save to ``output``; those of a seeded share validate.

    Raises:
        DegenerateSourceError: all labels are right, or all wrong, among the rows of one part.
        RunFailedError: the fit failed more than ``config.max_failures`` times; the same call goes on.
    """
    rows = read_rows(labels, grades, config, seed=seed)
    output = output.resolve()
    origin = origin_of(labels, grades, config, seed)
    shared = ray.put(tuple(rows))  # one copy a node, which its workers map
    launch(
        _train,
        {"rows": [shared], "origin": origin, "output": str(output)},
        config,
        name=f"trust-{fingerprint(origin)}",  # a checkpoint of other rows or settings is not taken up
        storage=output.with_name(f"{output.name}.ray"),
    )
    return saved.pin(output, TrustRef)


def fit_probe(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int, output: Place) -> TrustRef:
    """Fit a linear probe on the same rows as :func:`fit_trust` fits on, in this process; validation rows are left out.

    Raises:
        DegenerateSourceError: all labels are right, or all wrong, among the rows of one part.
    """
    rows = read_rows(labels, grades, config, seed=seed)
    probe = fit_linear_probe(
        rows.hidden_ND[~rows.validation_N],
        rows.correct_N[~rows.validation_N],
        states=config.states,
        class_weight=config.class_weight,
        origin=origin_of(labels, grades, config, seed),
    )
    return probe.save(output)


FITS = {"neural": fit_trust, "linear_probe": fit_probe}
"""How each of ``curation.trust.FITTED`` is fitted."""


def origin_of(labels: TableRef, grades: TableRef, config: TrustConfig, seed: int) -> dict[str, Any]:
    """What a fit is made from, as JSON."""
    return {
        "labels": labels.to_json(),
        "grades": grades.to_json(),
        "config": config.model_dump(mode="json"),
        "seed": seed,
    }


def read_rows(labels: TableRef, grades: TableRef, config: TrustConfig, *, seed: int) -> Rows:
    """The rows of ``labels`` that are graded and have all states, batch by batch into one array.

    Raises:
        DegenerateSourceError: all labels are right, or all wrong, among the rows of one part.
    """
    graded = read_grades(grades)
    columns = [state_column(state) for state in config.states]
    hidden_ND: Floats | None = None
    present_N = np.zeros(len(graded.row_ids_N), dtype=np.bool_)
    dataset = store.open_table(labels)
    for batch in dataset.scanner(columns=["row_id", *columns], filter="error IS NULL").to_batches():
        states = read_states(batch, columns)
        row_ids_B = batch.column("row_id").to_numpy()
        places_B = np.searchsorted(graded.row_ids_N, row_ids_B)
        known_B = np.searchsorted(graded.row_ids_N, row_ids_B, side="right") > places_B
        use_B = known_B & ~states.missing_N
        hidden_BD = torch.cat(states.columns, dim=1).numpy()
        if hidden_ND is None:
            hidden_ND = np.empty((len(graded.row_ids_N), states.size), dtype=hidden_BD.dtype)
        hidden_ND[places_B[use_B]] = hidden_BD[use_B]
        present_N[places_B[use_B]] = True
    if hidden_ND is None:
        hidden_ND = np.empty((0, 0), dtype=np.float16)
    row_ids_N = graded.row_ids_N[present_N]
    rows = Rows(
        hidden_ND=hidden_ND if present_N.all() else hidden_ND[present_N],
        correct_N=graded.correct_N[present_N],
        validation_N=hash_unit(row_ids_N, seed) < config.validation_fraction,
    )
    _refuse_degenerate(rows)
    return rows


class _RayShard(Shard):
    """The share of one worker of Ray Train."""

    def __init__(self) -> None:
        context = ray.train.get_context()
        self.rank, self.size = context.get_world_rank(), context.get_world_size()
        self._last = time.monotonic()

    def prepare(self, net: nn.Module) -> nn.Module:
        prepared: nn.Module = ray.train.torch.prepare_model(net)
        return prepared

    def total(self, values: Tensor) -> Tensor:
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def keep(self, write: Callable[[Path], None]) -> None:
        # A report waits for Ray's next look at the worker, and for the other workers: seldom, and by rank 0's clock.
        due = float(self.rank == 0 and time.monotonic() - self._last > CHECKPOINT_SECONDS)
        if not self.total(torch.tensor(due, device=ray.train.torch.get_device())):
            return
        with TemporaryDirectory() as directory:
            checkpoint = None
            if self.rank == 0:
                write(Path(directory))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({}, checkpoint=checkpoint)
        self._last = time.monotonic()

    def restore(self, read: Callable[[Path], None]) -> None:
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            with checkpoint.as_directory() as directory:
                read(Path(directory))


def _train(task: dict[str, Any]) -> None:
    """What each worker runs."""
    origin = task["origin"]
    config = TrustConfig.model_validate(origin["config"])
    torch.set_num_threads(config.cpus_per_worker)
    logging.getLogger("train").setLevel(logging.INFO)
    rows = Rows(*ray.get(task["rows"][0]))
    net, record = fit_arrays(rows, config, seed=origin["seed"], shard=_RayShard())
    if ray.train.get_context().get_world_rank() == 0:
        NeuralTrust(net, config.states, origin | asdict(record)).save(place(task["output"]))
        log.info(
            "trust: %d + %d rows, %d epochs in %.0f s, validation AUC %.3f in epoch %d",
            record.num_fit,
            record.num_validation,
            len(record.losses),
            record.seconds,
            record.validation_aucs[record.best_epoch - 1],
            record.best_epoch,
        )


def _refuse_degenerate(rows: Rows) -> None:
    for part, of_N in (("fit", ~rows.validation_N), ("validation", rows.validation_N)):
        num_rows, num_right = int(of_N.sum()), int(rows.correct_N[of_N].sum())
        if num_right in (0, num_rows):
            raise DegenerateSourceError(
                f"trust: {num_right} of {num_rows} weak labels are right in the {part} part of the source, both right "
                "and wrong ones are needed; give more source rows, another trust.validation_fraction or another teacher"
            )

"""The stages that compute gradients of an arm's rows by the base student, and that compare the arms' coherence.

All arms use the same base model, before any training, so that arms differ only in their rows (the paper does not say
at which point of the training it computes gradients). All arms are compared on the same number of rows.

The last hidden states are the input of the output layer, after the final norm (paper, section "Mechanisms", finding 3).
Our choices, where the paper gives none: a row's loss is the mean over its completion's tokens, as in training; its
gradients at the positions of the completion are summed to one vector, the gradient by a vector that is added to all of
the row's last hidden states. The model's own forward pass computes the logits, so that scaled or capped logits count as
they do in training; only the output layer is differentiated.

Shapes: B rows of a batch, K positions, D numbers of a hidden state.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Float32s, Int64s
from curation.errors import ConfigError, ModelError
from curation.extras.analyze.coherence import Coherence, compare_coherence, compute_coherence
from curation.extras.analyze.config import GradientsConfig
from curation.hashing import draw_by_hash
from curation.heavy import torch
from curation.json_types import Json
from curation.models import check_tokens, get_state_size, load_model, load_tokenizer
from curation.models.dtypes import HALF_TRAINING, choose_dtype
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Done, In, InEach, Stage, setting
from curation.rundir.run import Task
from curation.stages.rows import compute_in_chunks
from curation.tables import io, schemas
from curation.tasks import run_in_tasks
from curation.telemetry.standing import Standing
from train.tokens import Pair, TrainingRow, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHUNK_ROWS = 512
"""Maximum number of rows per task."""
READ_ROWS = 256
"""Maximum number of rows that are held in float64 at a time."""
FEWEST = 20
"""Minimum number of gradients of an arm for it to be compared with others."""


def make_schema(size: int) -> pa.Schema:
    """Return the schema of gradients of ``size`` numbers."""
    return pa.schema([schemas.ROW_ID, pa.field("gradient", pa.list_(pa.float32(), size)), schemas.ERROR])


class TakeGradients(Stage):
    """A stage that computes the gradients of an arm's rows."""

    class Made(NamedTuple):
        gradients: TableRef
        """Schema :func:`make_schema`."""

    digest: In[str]
    """A digest that names the rows."""
    base: In[ModelRef]
    """The student before its training."""
    gradients: GradientsConfig
    max_length: int
    chat_template: bool
    seed: int
    rows: In[TableRef] = setting()
    """The arm's selection."""

    @property
    def takes(self) -> dict[str, float]:
        """The resources of one Ray task."""
        return {"CPU": float(self.gradients.cpus)} | ({"GPU": self.gradients.gpus} if self.gradients.gpus else {})

    def run(self, task: Task) -> Done:
        """Compute the gradients of a sample of the rows, and report how many rows have none."""
        ids_N = io.read(self.rows, columns=["row_id"])["row_id"].to_numpy()
        with task.progress() as update:
            ref = compute_in_chunks(
                partial(_compute_gradients, job=self),
                draw_by_hash(ids_N, self.gradients.rows, self.seed),
                str(task.directory / "gradients.lance"),
                make_schema(get_state_size(self.base, ())),
                chunk_rows=CHUNK_ROWS,
                resources={"num_cpus": self.gradients.cpus, "num_gpus": self.gradients.gpus},
                guard=task.guard,
                progress=update,
            )
        if num_failed := io.count(ref, filter="error IS NOT NULL"):
            task.say(f"{num_failed:,} rows have no gradient; the table has their errors")
        return Done(outputs=self.Made(gradients=ref), rows=io.count(ref))


class CompareGradients(Stage):
    """A stage that compares the coherence of the arms' gradients."""

    class Made(NamedTuple):
        found: Json

    tables: InEach[TableRef | None]
    """Tables of gradients by arm; None for an arm that selected nothing."""
    reference: str
    seed: int

    def run(self, task: Task) -> Done:
        """Compare the arms; one Ray task per arm holds a few matrices [D, D]."""
        tables = {arm: ref for arm, ref in self.tables.items() if ref is not None}
        healthy = {arm: io.read(ref, ["row_id"], "error IS NULL")["row_id"].to_numpy() for arm, ref in tables.items()}
        enough = {arm: ids_N for arm, ids_N in healthy.items() if len(ids_N) >= FEWEST}
        if not enough:
            most = max(map(len, healthy.values()), default=0)
            raise ConfigError(
                f"analyze.gradients: of no arm {FEWEST} rows have a gradient (the most are {most}); raise "
                "analyze.gradients.rows or the budget, or turn them off by analyze.gradients: null"
            )
        num = min(map(len, enough.values()))
        drawn = {arm: np.sort(draw_by_hash(ids_N, num, self.seed)) for arm, ids_N in enough.items()}
        measured: dict[str, Coherence] = {}
        with task.progress() as update:
            of_arms = run_in_tasks(_measure_coherence, ((tables[arm], ids_N) for arm, ids_N in drawn.items()))
            for arm, coherence in zip(drawn, of_arms, strict=True):
                measured[arm] = coherence
                update(Standing(rows=len(measured), total=len(drawn), unit="arms"))
        against = measured.get(self.reference)
        arms = {
            arm: {
                **coherence.to_json(),
                "against": None if against is None or arm == self.reference else compare_coherence(coherence, against),
            }
            for arm, coherence in measured.items()
        }
        found = {
            "n": num,
            "size": io.open_table(next(iter(tables.values()))).schema.field("gradient").type.list_size,
            "reference": None if against is None else self.reference,
            "too_few": sorted(set(healthy) - set(enough)),
            "errors": {arm: io.count(ref, filter="error IS NOT NULL") for arm, ref in tables.items()},
            "arms": arms,
        }
        return Done(outputs=self.Made(found=found), rows=num * len(arms))


def _measure_coherence(ref: TableRef, row_ids_N: Int64s) -> Coherence:
    """Return the coherence of the given rows of a table of gradients, which is streamed."""
    table = io.open_table(ref)

    def iter_gradients() -> Iterator[tuple[Int64s, Float32s]]:
        scanner = table.scanner(columns=["row_id", "gradient"], batch_size=READ_ROWS, scan_in_order=True)
        for batch in scanner.to_batches():
            ids_B = batch.column("row_id").to_numpy()
            (kept_M,) = np.nonzero(np.isin(ids_B, row_ids_N))
            column = batch.column("gradient").take(pa.array(kept_M))
            yield ids_B[kept_M], column.flatten().to_numpy().reshape(len(kept_M), -1)

    return compute_coherence(iter_gradients, table.schema.field("gradient").type.list_size)


def _compute_gradients(ids_M: Int64s, job: TakeGradients) -> pa.Table:
    """Return a chunk's rows with gradients; a row that is too long, or has no finite gradient, is an error row."""
    settings, on_gpu = job.gradients, job.gradients.gpus > 0
    torch.set_num_threads(settings.cpus)
    dtype = choose_dtype(settings.dtype, job.base, on_gpu=on_gpu, half=HALF_TRAINING)
    model, tokenizer = _load_base(job.base, dtype, "cuda" if on_gpu else "cpu")
    by_length: list[TrainingRow] = []
    rows: list[Json] = []
    for text in io.take(job.rows, ids_M, ["row_id", "prompt", "completion"]).to_pylist():
        pair = Pair(text["prompt"], text["completion"])
        if found := tokenize(tokenizer, [pair], job.max_length, chat_template=job.chat_template):
            by_length.append({**found[0], "row_id": text["row_id"]})
        else:
            rows.append({"row_id": text["row_id"], "error": f"too_long: more than {job.max_length} tokens"})
    by_length.sort(key=lambda row: len(row["input_ids"]))
    for start in range(0, len(by_length), settings.batch_rows):
        batch = by_length[start : start + settings.batch_rows]
        gradient_BD = compute_row_gradients(model, batch, int(tokenizer.pad_token_id))
        for row, gradient_D in zip(batch, gradient_BD, strict=True):
            if np.isfinite(gradient_D).all():
                rows.append({"row_id": row["row_id"], "gradient": gradient_D})
            else:
                rows.append({"row_id": row["row_id"], "error": "not_finite: the gradient overflows"})
    return pa.Table.from_pylist(rows, schema=make_schema(model.config.get_text_config().hidden_size))


@lru_cache(maxsize=1)
def _load_base(base: ModelRef, dtype: str, device: str) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return the base student and its tokenizer, loaded once per worker process."""
    model, tokenizer = load_model(base, dtype=dtype, device=device), load_tokenizer(base)
    check_tokens(base, tokenizer, model)
    return model, tokenizer


def compute_row_gradients(model: "PreTrainedModel", rows: Sequence[TrainingRow], pad: int) -> Float32s:
    """Freeze a model in evaluation mode, and return the gradients of rows [B, D] from one forward pass."""
    from train.sft import collate, compute_completion_loss

    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ModelError(
            f"model {model.config.name_or_path!r}: it names no output layer, so no gradient by what that reads can be "
            "taken; set analyze.gradients: null"
        )
    batch = collate(rows, pad)
    labels_BK = batch["labels"].to(model.device)
    held: dict[str, torch.Tensor] = {}

    def cut(module: "torch.nn.Module", inputs: "tuple[torch.Tensor, ...]") -> "tuple[torch.Tensor, ...]":
        held["hidden"] = inputs[0].detach().requires_grad_()
        return (held["hidden"], *inputs[1:])

    model.requires_grad_(False)
    hook = head.register_forward_pre_hook(cut)
    try:
        logits_BKV = model(
            input_ids=batch["input_ids"].to(model.device),
            attention_mask=batch["attention_mask"].to(model.device),
            logits_to_keep=batch["logits_to_keep"],
            use_cache=False,
        ).logits
    finally:
        hook.remove()
    rows_1KV, labels_1K = logits_BKV.split(1), labels_BK.split(1)
    loss_B = torch.stack(list(map(compute_completion_loss, rows_1KV, labels_1K)))
    # No row's loss depends on another row, so the gradient of the sum of losses consists of each row's own.
    (gradient_BKD,) = torch.autograd.grad(loss_B.sum(), held["hidden"])
    return np.asarray(gradient_BKD.float().sum(dim=1).cpu().numpy())

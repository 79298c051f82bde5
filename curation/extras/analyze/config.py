"""Settings of ``curate analyze``: why the rows of an arm teach well (paper, section "Mechanisms")."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from curation.config.base import NotNegative, PositiveInt, Section


class EngineConfig(Section):
    """A chess engine that compares weak with gold moves where they differ (paper, section "Mechanisms", finding 2).

    It searches with one thread, an empty hash and a fixed number of nodes, so the same position has the same value on
    every machine. The paper names neither its nodes nor how it counts mates; ``gaps.py`` says ours.
    """

    path: str = "stockfish"
    """A program that speaks UCI: a path, or a name that is looked for in ``PATH`` and in ``/usr/games``."""
    nodes: PositiveInt = 100_000
    """Nodes of the search after a move."""
    hash_mb: PositiveInt = 16
    """MiB of the engine's hash, which is empty before each search."""
    options: dict[str, str | int | bool] = Field(default={})
    """Further UCI options, e.g. ``{EvalFile: /models/nn.nnue}``; ``Threads`` is always 1."""
    rows: PositiveInt = 500
    """Most rows of an arm; a draw by row id, so that arms share the rows that both selected."""
    equal_within: Annotated[int, Field(ge=0, le=1_000)] = 50
    """Centipawns by which two moves may differ and still count as equal."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Longest search; a row whose search takes longer becomes an error row."""


class GradientsConfig(Section):
    """Gradients of the loss by the student's last hidden states (paper, section "Mechanisms", finding 3)."""

    RESOURCES: ClassVar[set[str]] = {"batch_rows", "cpus", "gpus"}

    rows: PositiveInt = 2_000
    """Most rows of an arm, drawn by row id. All arms are compared by the same number: what the smallest one has."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The base student's numbers; gradients are added up in float64. ``auto``: bfloat16 on a GPU (``gpus`` above 0)
    where the checkpoint's ``config.json`` names it, else float32."""
    batch_rows: PositiveInt = 16
    """Rows of a forward pass."""
    cpus: PositiveInt = 1
    """CPUs, and threads, of a task."""
    gpus: NotNegative = 0
    """GPUs of a task."""


class AnalyzeConfig(Section):
    """The stages of ``curate analyze``; ``null`` leaves one out."""

    engine: EngineConfig | None = EngineConfig()
    """Only of domains whose labels are moves, and with ``splits.audit``."""
    gradients: GradientsConfig | None = GradientsConfig()
    """Only of runs that train students."""

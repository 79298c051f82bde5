"""Settings of ``curate analyze``: why the rows of an arm teach well (paper, section "Mechanisms")."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from curation.config.base import NotNegative, PositiveInt, Section


class EngineConfig(Section):
    """A chess engine that compares weak with gold moves where they differ (paper, section "Mechanisms", finding 2).

    It searches with one thread, an empty hash and a fixed number of nodes, so the same position has the same value on
    every machine. The paper gives neither the number of nodes nor the value of a mate; ours is in ``value_moves.py``.
    """

    path: str = "stockfish"
    """Program that speaks UCI: a path, or a name that is searched for in ``PATH`` and in ``/usr/games``."""
    nodes: PositiveInt = 100_000
    """Number of nodes that the engine searches after a move."""
    hash_mb: PositiveInt = 16
    """Size of the engine's hash, in MiB; it is empty before each search."""
    options: dict[str, str | int | bool] = Field(default={})
    """Further UCI options, e.g. ``{EvalFile: /models/nn.nnue}``; ``Threads`` is always 1."""
    rows: PositiveInt = 500
    """Maximum number of rows per arm, drawn by row id so that arms share rows that both selected."""
    equal_within: Annotated[int, Field(ge=0, le=1_000)] = 50
    """Centipawns by which two moves may differ and still count as equal."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time limit of a search, in seconds; a row whose search takes longer becomes an error row."""


class GradientsConfig(Section):
    """Gradients of the loss by the student's last hidden states (paper, section "Mechanisms", finding 3)."""

    RESOURCES: ClassVar[set[str]] = {"batch_rows", "cpus", "gpus"}

    rows: PositiveInt = 2_000
    """Maximum number of rows per arm, drawn by row id. All arms are compared on as many rows as the smallest has."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number type of the base student; gradients are summed in float64. ``auto``: bfloat16 on a GPU (``gpus`` above 0)
    if the checkpoint's ``config.json`` names it, else float32."""
    batch_rows: PositiveInt = 16
    """Number of rows per forward pass."""
    cpus: PositiveInt = 1
    """Number of CPUs, and of threads, per task."""
    gpus: NotNegative = 0
    """Number of GPUs per task."""


class AnalyzeConfig(Section):
    """The stages of ``curate analyze``; ``null`` omits a stage."""

    engine: EngineConfig | None = EngineConfig()
    """Comparison of moves by a chess engine; needs a domain whose labels are moves, and ``splits.audit``."""
    gradients: GradientsConfig | None = GradientsConfig()
    """Comparison of gradients; needs a run that trains students."""

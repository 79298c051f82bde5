"""A tiny random model with the vocabulary of chess, for inputs that work with any model."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curation.refs import ModelRef

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
}


def make_tiny_model(path: Path) -> "ModelRef":
    """Save one shaped like Qwen3."""
    from curation.config import DomainConfig
    from curation.domains import get_domain
    from curation.models import create

    vocabulary = get_domain(DomainConfig(name="chess")).vocabulary()
    return create(path, family="qwen3", shape=SHAPE, words=vocabulary.words, pattern=vocabulary.pattern, seed=1)

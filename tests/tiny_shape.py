"""The shape of the smallest language model that trains, as a configuration of transformers has it."""

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}

LONG = TINY | {"num_key_value_heads": 1, "max_position_embeddings": 400}
"""The same for prompts of some hundred characters, a token each."""

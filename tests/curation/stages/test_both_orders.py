"""Both orders of two answers: the number of the labels table against the other order asked by itself."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from curation.config import DomainConfig, TeacherConfig
from curation.domains import get_domain
from curation.models import create
from curation.stages.label import count_labels
from curation.stages.label_chunks import AskSettings, label_rows
from curation.tables import io
from curation.teachers import load_teacher

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
CONFIG: dict[str, Any] = {"backend": "transformers", "model": {"path": "unused"}, "batch_tokens": 4096}


def labelled(teacher: Any, asked: Any, examples: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    domain = get_domain(DomainConfig(name="pair", **options))
    rows = [{"row_id": number, "error": None, **example} for number, example in enumerate(examples)]
    batches = list(label_rows(asked, domain, teacher, rows))
    return sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda row: row["row_id"])


def test_agreement_is_the_labels_probability_in_the_other_order(tmp_path: Path) -> None:
    words = tuple(map(chr, range(0x20, 0x7F)))
    shape = {**SHAPE, "intermediate_size": 32, "max_position_embeddings": 256}
    base = create(tmp_path / "base", family="qwen3", shape=shape, words=(*words, "\n"), pattern=r"[\s\S]", seed=0)
    config = TeacherConfig.model_validate(CONFIG)
    asked = AskSettings(teacher=config.ask, decoding=config.decoding, seed=0)
    teacher = load_teacher(config.ask, base)
    examples = [{"question": f"q{n}?", "first": "ab" * (n % 3 + 1), "second": "x" * n or "y"} for n in range(12)]
    found = labelled(teacher, asked, examples)
    turned = [{**row, "first": row["second"], "second": row["first"]} for row in examples]
    others = labelled(teacher, asked, turned, both_orders=False)
    assert "order_agreement" not in others[0] and {row["label"] for row in found} <= {"first", "second"}
    for row, other in zip(found, others, strict=True):
        scores = np.exp(np.array(other["option_logprobs"]))
        place = {"first": 1, "second": 0}[row["label"]]  # the same answer, in the other order
        assert np.isclose(row["order_agreement"], scores[place] / scores.sum(), atol=1e-5)
        assert row["order_prompt_tokens"] == other["num_prompt_tokens"]
        assert row["order_output_tokens"] == other["num_output_tokens"]
    drop = [name for name in found[0] if name.startswith("order_")]
    plain = count_labels(io.write(pa.Table.from_pylist(others), str(tmp_path / "others.lance")))
    counts = count_labels(io.write(pa.Table.from_pylist(found), str(tmp_path / "both.lance")))
    first = pa.Table.from_pylist(found).drop_columns(drop)
    alone = count_labels(io.write(first, str(tmp_path / "first.lance")))  # a table of one order
    assert counts.prompt_tokens == alone.prompt_tokens + plain.prompt_tokens
    assert counts.output_tokens == alone.output_tokens + plain.output_tokens
    assert counts.order_tokens == plain.prompt_tokens + plain.output_tokens > 0
    assert counts.both_orders == len(examples) and alone.both_orders == alone.order_tokens == 0
    assert counts.disagreeing == sum(row["order_agreement"] < 0.5 for row in found)
    labels = [{"first": "second", "second": "first"}[other["label"]] for other in others]
    assert counts.disagreeing == sum(row["label"] != label for row, label in zip(found, labels, strict=True))


def test_a_drawn_answer_agrees_or_does_not(tmp_path: Path) -> None:
    """A server of kind openai chooses a letter without scores; this one keeps to its answer where that is long."""
    from endpoint_server import serving

    def answer(prompt: str) -> str:
        first, second = (prompt.split(f"Answer {letter}: ")[1].split("\n")[0] for letter in "AB")
        keeps = "long" in (first, second)
        return json.dumps({"answer": "B" if keeps and second == "long" else "A"})

    with serving(answer=answer) as server:
        endpoint = {"url": server.url, "model": "m", "kind": "openai"}
        config = TeacherConfig.model_validate({"backend": "endpoint", "endpoint": endpoint, "states": []})
        decoding = config.decoding.model_copy(update={"constrained": True})
        asked = AskSettings(teacher=config.ask.model_copy(update={"chat_template": True}), decoding=decoding, seed=0)
        teacher = load_teacher(asked.teacher, None)
        answers = [("long", "a"), ("a", "long"), ("a", "b")]
        with closing(cast(Any, teacher)):
            found = labelled(teacher, asked, [{"question": "q", "first": one, "second": two} for one, two in answers])
    assert [row["label"] for row in found] == ["first", "second", "first"]
    assert [row["order_agreement"] for row in found] == [1.0, 1.0, 0.0]


def test_rows_that_cannot_be_asked_have_none(tmp_path: Path) -> None:
    config = TeacherConfig.model_validate({"backend": "scripted", "scripted": {"error_rows": [1]}})
    asked = AskSettings(teacher=config.ask, decoding=config.decoding, seed=0)
    rows = [{"question": "q", "first": "a", "second": f"b{n}"} for n in range(3)]
    found = labelled(load_teacher(config.ask, None), asked, rows)
    assert [row["order_agreement"] is None for row in found] == [False, True, False]
    assert [row["order_prompt_tokens"] is None for row in found] == [False, True, False]

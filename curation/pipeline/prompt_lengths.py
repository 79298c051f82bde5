"""The prompts of some rows, counted by the teacher's own tokenizer before anything runs."""

from collections.abc import Iterator, Mapping, Sequence

from curation import models
from curation.config import RunConfig
from curation.domains import Example, attempt, get_domain
from curation.domains.given import as_asked
from curation.signals import label_request
from curation.teachers.prompts import tokenise


def long_prompts(config: RunConfig, examples: Mapping[str, Sequence[Example]]) -> Iterator[str]:
    """Yield a warning for each split of whose ``examples`` some have longer prompts than the teacher takes.

    Raises:
        ModelError: the tokenizer or the configuration of the teacher's model cannot be read.
    """
    model, decoding = config.models.get("teacher"), config.teacher.decoding
    if model is None or model.path is None or model.allow_remote_code:
        return  # code of a model's own is not run to look
    ref = models.named(model)
    longest = models.read_configuration(ref).get("max_position_embeddings")
    if longest is None:
        return
    tokenizer = models.read_tokenizer(ref)
    for split, rows in examples.items():
        domain = as_asked(get_domain(config.domain_of(split)), decoding)
        found = (attempt(label_request, domain, place, row)[0] for place, row in enumerate(rows))
        requests = [request for request in found if request is not None]
        asked = tokenise(tokenizer, requests, chat_template=config.teacher.chat_template)
        sizes = [len(row.prompt) + row.room(decoding.max_tokens) for row in asked]
        over = [size for size in sizes if size > longest]
        if over:
            yield (
                f"splits.{split}: {100 * len(over) / len(sizes):.1f} % of {len(sizes):,} rows seen cannot be asked: "
                f"prompt and answer need up to {max(over):,} tokens, and {ref.base} takes {longest:,}; cut their texts "
                "by a template, e.g. {{ text | truncate(4000) }}, lower teacher.decoding.max_tokens, or take a model "
                "of a longer context"
            )

"""Requests as tokens: the chat template, the boundary between prompt and option, and what a model cannot take."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from curation.models import as_user_turns, text_ids
from curation.teachers import Request
from curation.teachers.completions import bad_options


@dataclass(frozen=True, kw_only=True)
class TokenisedRequest:
    """A request and its tokens."""

    request: Request
    prompt: list[int]
    options: list[list[int]] | None

    def problem(self, max_positions: int | None, max_tokens: int) -> str | None:
        """Why a model of so many positions cannot take it, as the error of its row; None: it can.

        ``max_tokens`` is the room for an answer that is generated.
        """
        room = max_tokens
        if self.options is not None:
            lengths = [len(tokens) for tokens in self.options]
            if (bad := bad_options(self.request.options or (), lengths)) is not None:
                return bad
            room = max(lengths)
        if not self.prompt:
            return "prompt_length: the prompt has no tokens"
        if max_positions is not None and len(self.prompt) + room > max_positions:
            return f"prompt_length: {len(self.prompt)} tokens and {room} of answer; the model takes {max_positions}"
        return None


def tokenise(
    tokenizer: PreTrainedTokenizerBase, requests: Sequence[Request], *, chat_template: bool
) -> list[TokenisedRequest]:
    """The requests as tokens.

    With ``chat_template`` a prompt is one user turn (``models.as_user_turns``). An option's tokens are those that the
    text of prompt and option has beyond the prompt's own tokens; where the two merge at the boundary, the option is
    tokenised by itself.
    """
    prompts = [request.prompt for request in requests]
    if chat_template:
        prompts = as_user_turns(tokenizer, prompts)
    special = not chat_template
    prompt_tokens = text_ids(tokenizer, prompts, special=special)
    wholes = iter(
        text_ids(
            tokenizer,
            [
                prompt + option
                for prompt, request in zip(prompts, requests, strict=True)
                for option in request.options or ()
            ],
            special=special,
        )
    )
    rows = []
    for request, tokens in zip(requests, prompt_tokens, strict=True):
        options = None
        if request.options is not None:
            options = []
            for option in request.options:
                whole = next(wholes)
                follows = whole[: len(tokens)] == tokens
                options.append(whole[len(tokens) :] if follows else text_ids(tokenizer, [option], special=False)[0])
        rows.append(TokenisedRequest(request=request, prompt=tokens, options=options))
    return rows

"""The transformers teacher: any causal LM, in batches of similar length, on one key-value cache.

Completions, log-probabilities and hidden states come from one pass: ``forward`` feeds the model, ``decoding`` draws
answers, ``options`` scores options and reads answers that came with the rows.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import torch

from curation.config import AskConfig, DecodingConfig
from curation.errors import ModelError
from curation.json_types import Json
from curation.models import as_user_turns, check_layers, check_tokens, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import BaseTeacher, Gate, Request
from curation.teachers.completions import error_batch
from curation.teachers.decoding import Decoder
from curation.teachers.forward import Forward, iter_padded_batches
from curation.teachers.options import read_answers, score_options
from curation.teachers.prompts import OptionTokens, TokenisedRequest, tokenise


class TransformersTeacher(BaseTeacher):
    """Any causal LM of ``AutoModelForCausalLM``: answers decoded greedily or sampled, options chosen by likelihood."""

    def __init__(self, config: AskConfig, model: ModelRef | None) -> None:
        if model is None:
            raise ModelError("the transformers backend needs a model; set teacher.model.path or teacher.model.init")
        self._ref = model
        self._tokenizer = load_tokenizer(model)
        device = "cuda" if torch.cuda.is_available() and config.actors.num_gpus else "cpu"
        self._model = load_model(model, dtype=config.dtype, device=device)
        check_tokens(model, self._tokenizer, self._model)
        self._ask(config)
        self._forward = Forward(self._model, pad=self._tokenizer.pad_token_id)
        self.state_size = self._forward.state_size
        ends = self._tokenizer.eos_token_id, self._model.generation_config.eos_token_id
        stop_ids = frozenset(one for ids in ends for one in ([ids] if isinstance(ids, int) else ids or []))
        self._known = OptionTokens()
        self._decoder = Decoder(self._forward, self._tokenizer, stop_ids)

    @staticmethod
    def engine_key(config: AskConfig) -> Json:
        """Return the type of the weights, and whether they are on a GPU."""
        return {"dtype": config.dtype, "gpu": bool(config.actors.num_gpus)}

    def _ask(self, config: AskConfig) -> None:
        self._config, self._stateless = config, config.model_copy(update=AskConfig.BARE)
        if config.chat_template:
            as_user_turns(self._tokenizer, [])  # refuse at once
        check_layers(self._ref, self._model.config.get_text_config().num_hidden_layers, config.states)

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded answers, then read ones, then scored options, longest first, in batches of ``batch_tokens``.

        A row that a gate passes continues from the keys and values of its prompt.
        """
        config = self._config if states else self._stateless
        errors: dict[int, str] = {}
        to_decode: list[TokenisedRequest] = []
        to_score: list[TokenisedRequest] = []
        to_read: list[TokenisedRequest] = []
        for row in tokenise(
            self._tokenizer,
            list(requests),
            chat_template=config.chat_template,
            known=self._known,
            reads_given=config.reads_given,
        ):
            problem = row.problem(self._forward.max_positions, decoding.max_tokens)
            if problem is not None:
                errors[row.request.row_id] = problem
            elif row.answer is not None:
                to_read.append(row)
            else:
                (to_decode if row.request.is_drawn else to_score).append(row)
        if errors:
            yield error_batch(errors, config, self.state_size)
        for batch in iter_padded_batches(
            to_decode, lambda row: len(row.prompt) + row.room(decoding.max_tokens), config.batch_tokens
        ):
            yield from self._decoder.complete(batch, config, decoding, seed=seed, gate=gate)
        for batch in iter_padded_batches(
            to_read, lambda row: len(row.prompt) + len(row.answer or ()), config.batch_tokens
        ):
            yield read_answers(self._forward, batch, config)
        for batch in iter_padded_batches(
            to_score, lambda row: len(row.prompt) + 1 + len(row.trie.inner), config.batch_tokens
        ):
            yield score_options(self._forward, batch, config, normalise=decoding.normalise_options)

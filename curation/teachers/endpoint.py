"""The endpoint teacher: answers and log-probabilities of a server with an OpenAI-compatible API.

A request is one question, as a chat of one user turn or as a completion (``teacher.chat_template``), and up to
``concurrency`` questions are open at once. Where a row has options, the answer is constrained to them: by
``structured_outputs`` in vLLM, by ``regex`` in SGLang, by a JSON schema in chats elsewhere. Options are not scored, and
there are no hidden states, since servers return none.
"""

import hashlib
import json
import queue
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.config.external import LENGTHS, NUMBERS_OF_ANSWERS, find_unsupported
from curation.errors import ConfigError
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.teachers import Request, Teacher
from curation.teachers.completions import AnsweredRow, completion_batch, find_options_problem
from curation.teachers.endpoint_answers import Usage
from curation.teachers.endpoint_client import Client, ServerQuestion

BATCH_ROWS = 128
AHEAD = 2  # questions handed to the event loop for each concurrent question
TEMPLATE_TOKENS = 64  # maximum number of tokens that a chat template adds
FIELD = "answer"  # field of the answer's JSON object that holds the chosen option


class EndpointTeacher(Teacher):
    """A teacher whose model is behind a server; concurrent threads share the server's limits."""

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        if config.endpoint is None:
            raise ConfigError("teacher: backend endpoint needs endpoint: {url: http://localhost:8000/v1, model: NAME}")
        self._ask(config)
        self.client = Client(config.endpoint, config.actors.max)
        self.slots = config.endpoint.concurrency  # maximum number of concurrent questions

    @staticmethod
    def engine_key(config: AskConfig) -> JsonView:
        """Return the server, its limits, and the place of the record of paid answers."""
        server = {} if config.endpoint is None else config.endpoint.model_dump(mode="json")
        return {**server, "num_actors": config.actors.max}

    @property
    def pause(self) -> str:  # type: ignore[override]
        """Message on how long the server has asked to wait; empty if that is short."""
        return str(self.client.pause)

    def close(self) -> None:
        """Abandon open questions and stop the client."""
        self.client.close()

    def label(  # type: ignore[override]
        self, requests: Iterable[Request], decoding: DecodingConfig, *, seed: int, states: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as their answers arrive, up to 128 in a batch (see ``Teacher.label``)."""
        client = self.client
        if (problem := find_unsupported(client.config, decoding, "decoding")) is not None:
            raise ConfigError(problem)
        num_logprobs = self._config.token_logprobs if states else 0
        stream, arrived = iter(requests), queue.SimpleQueue[Future[AnsweredRow]]()
        under_way: set[Future[AnsweredRow]] = set()
        failure: BaseException | None = None
        try:
            while True:
                while failure is None and len(under_way) < AHEAD * client.config.concurrency:
                    if (request := next(stream, None)) is None:
                        break
                    future = client.run(self._answer(request, decoding, seed))
                    under_way.add(future)
                    future.add_done_callback(arrived.put)
                if not under_way:
                    break
                done = [arrived.get()]
                while len(done) < BATCH_ROWS and not arrived.empty():
                    done.append(arrived.get())
                rows = []
                for future in done:
                    under_way.remove(future)
                    if (failed := future.exception()) is None:
                        rows.append(future.result())
                    failure = failure or failed  # raised once the answers under way, which are paid, have come
                if rows:
                    client.paid.flush()
                    dtype = self._config.state_dtype
                    yield completion_batch(rows, states={}, state_dtype=dtype, num_token_logprobs=num_logprobs)
            if failure is not None:
                raise failure
        finally:
            for future in under_way:
                future.cancel()

    async def _answer(self, request: Request, decoding: DecodingConfig, seed: int) -> AnsweredRow:
        """Return the answer of a row, which is paid for at most once.

        An answer that is paid for or awaited is reused, even by another row, unless it is sampled.
        """
        options, problem = request.options, None
        if options is not None:
            problem = find_options_problem(options, [len(option) for option in options])
            if len(options) == 1 and not request.is_drawn:
                problem = problem or "endpoint_scores: a server scores no answer that it is given"
        if problem is not None:
            return AnsweredRow(request.row_id, error=problem)
        found = await self.client.ask(make_question(request, decoding, self._config, seed))
        text = found.completion
        if options is not None and text is not None:
            text = next((option for option in options if option.strip() == text.strip()), text)
        return found._replace(row_id=request.row_id, completion=text)


def make_question(request: Request, decoding: DecodingConfig, config: AskConfig, seed: int) -> ServerQuestion:
    """Return the question of a row; its key hashes the request, and row and seed if the answer is sampled."""
    served, field = config.endpoint, None
    assert served is not None, "a teacher is made of it"
    body: Json = {
        "model": served.model,
        "max_tokens": decoding.max_tokens,
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "stop": list(decoding.stop) or None,
        "presence_penalty": decoding.presence_penalty or None,
    }
    if served.kind != "openai":
        body |= {"top_k": decoding.top_k or None, "min_p": decoding.min_p or None}
    if decoding.temperature:
        body["seed"] = request.make_seed(seed)
    if config.chat_template:
        path = "/chat/completions"
        body["messages"] = [{"role": "user", "content": request.prompt}]
        body |= {"logprobs": True, "top_logprobs": served.top_logprobs} if served.top_logprobs else {}
    else:
        path = "/completions"
        body |= {"prompt": request.prompt, "logprobs": served.top_logprobs or None}
    if request.options is not None:
        choices = [option.strip() for option in request.options] if config.chat_template else list(request.options)
        body |= {"stop": None, "max_tokens": max(len(choice.encode()) for choice in choices) + 1}
        if served.kind == "vllm":
            body["structured_outputs"] = {"choice": choices}
        elif served.kind == "sglang":
            body["regex"] = f"({'|'.join(map(re.escape, choices))})"
        elif config.chat_template:
            field = FIELD
            schema = {
                "type": "object",
                "properties": {FIELD: {"type": "string", "enum": choices}},
                "required": [FIELD],
                "additionalProperties": False,
            }
            form = {"type": "json_schema", "json_schema": {"name": FIELD, "strict": True, "schema": schema}}
            body |= {"response_format": form, "max_tokens": body["max_tokens"] + len(FIELD) + 16}
    body |= served.body
    body = {key: value for key, value in body.items() if value is not None}
    asked: Json = {"path": path, "body": body, "kind": served.kind}
    if decoding.temperature:
        asked |= {"row": request.row_id, "seed": seed}
    if again := getattr(served, "again", 0):
        asked["again"] = again
    text = json.dumps(asked, sort_keys=True, ensure_ascii=False)
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return ServerQuestion(path, body, compute_most_usage(body, decoding.max_tokens), key, field)


def compute_most_usage(body: JsonView, max_tokens: int) -> Usage:
    """Return a question's most tokens: one per byte of its body, and its longest answers (else of ``max_tokens``)."""
    longest = max(body.get(name) or 0 for name in LENGTHS) or max_tokens
    answers = max(body.get(name) or 1 for name in NUMBERS_OF_ANSWERS)
    return Usage(len(json.dumps(body, ensure_ascii=False).encode()) + TEMPLATE_TOKENS, longest * answers)

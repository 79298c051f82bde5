"""The endpoint teacher: answers and log-probabilities of a server with an OpenAI-compatible API.

A request is one question, as a chat of one user turn or as a completion (``teacher.chat_template``), and up to
``concurrency`` questions are open at once. Where a row has options, the answer is constrained to them: by
``structured_outputs`` in vLLM, by ``regex`` in SGLang, by a JSON schema in chats elsewhere. Only vLLM scores options,
token by token (``prompt_logprobs``). There are no hidden states, since servers return none.
"""

import asyncio
import json
import queue
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from urllib.parse import urlsplit

import pyarrow as pa

from curation.config import AskConfig, DecodingConfig
from curation.config.endpoint import COUNTED, LENGTHS, NEEDED, NUMBERS_OF_ANSWERS, EndpointConfig, find_unsupported
from curation.errors import ConfigError
from curation.escaping import quote_text
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.teachers import BaseTeacher, Request
from curation.teachers.completions import AnsweredRow, completion_batch, find_options_problem, rank_options
from curation.teachers.endpoint_answers import (
    ServedAnswer,
    UnreadableError,
    Usage,
    read_answer,
    read_scores,
)
from curation.teachers.endpoint_client import Client, RefusedError, ServerQuestion
from curation.teachers.endpoint_paid import hash_request

BATCH_ROWS = 128
AHEAD = 2  # questions handed to the event loop for each concurrent question
LOOK_SECONDS = 0.05  # interval between checks for an answer that another process has asked for, in seconds
TEMPLATE_TOKENS = 64  # maximum number of tokens that a chat template adds
MAX_KNOWN = 2**16  # maximum number of options whose tokens are cached
FIELD = "answer"  # field of the answer's JSON object that holds the chosen option


class EndpointTeacher(BaseTeacher):
    """A teacher whose model is behind a server; concurrent threads share the server's limits."""

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        if config.endpoint is None:
            raise ConfigError(f"teacher: backend {NEEDED}")
        self._ask(config)
        self.client = Client(config.endpoint, config.actors.max)
        self._tokens = _ServersTokens(self.client, config.endpoint)

    @staticmethod
    def engine_key(config: AskConfig) -> JsonView:
        """Return the server, its limits, and the place of the record of paid answers."""
        server = {} if config.endpoint is None else config.endpoint.model_dump(mode="json")
        return {**server, "num_actors": config.actors.max}

    @property
    def slots(self) -> int:
        """Maximum number of concurrent questions."""
        return int(self.client.config.concurrency)

    @property
    def pause(self) -> str:
        """Message on how long the server has asked to wait; empty if that is short."""
        return str(self.client.pause)

    def close(self) -> None:
        """Abandon open questions and stop the client."""
        self.client.close()

    def label(
        self, requests: Iterable[Request], decoding: DecodingConfig, *, seed: int, states: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as their answers arrive, up to 128 in a batch (see ``Teacher.label``)."""
        client = self.client
        if (problem := find_unsupported(client.config, decoding, "decoding")) is not None:
            raise ConfigError(problem)
        num_logprobs = self._config.token_logprobs if states else 0
        stream, arrived = iter(requests), queue.SimpleQueue[Future[ServedAnswer]]()
        under_way: dict[Future[ServedAnswer], Request] = {}
        failure: BaseException | None = None
        try:
            while True:
                while failure is None and len(under_way) < AHEAD * client.config.concurrency:
                    if (request := next(stream, None)) is None:
                        break
                    future = client.run(self._answer(request, decoding, seed))
                    under_way[future] = request
                    future.add_done_callback(arrived.put)
                if not under_way:
                    break
                done = [arrived.get()]
                while len(done) < BATCH_ROWS and not arrived.empty():
                    done.append(arrived.get())
                rows = []
                for future in done:
                    request, failed = under_way.pop(future), future.exception()
                    if failed is None:
                        rows.append((request, future.result()))
                    failure = failure or failed  # answers that are under way are paid: they are waited for
                if rows:
                    client.paid.flush()
                    yield _make_batch(rows, decoding, num_logprobs, self._config.state_dtype)
            if failure is not None:
                raise failure
        finally:
            for future in under_way:
                future.cancel()

    async def _answer(self, request: Request, decoding: DecodingConfig, seed: int) -> ServedAnswer:
        """Return the answer of a row, which is paid for at most once."""
        options = request.options
        if options is not None:
            if (bad := find_options_problem(options, [len(option) for option in options])) is not None:
                return ServedAnswer(error=bad)
            if not request.is_drawn and (len(options) == 1 or self.client.config.kind == "vllm"):
                return await self._score(request)
        path, body, field = make_question(request, decoding, self._config, seed)
        of_row = {"row": request.row_id, "seed": seed} if decoding.temperature else {}
        most = compute_most_usage(body, decoding.max_tokens)
        answer = await self._find_or_buy(ServerQuestion(path, body, most, partial(read_answer, field=field)), of_row)
        if options is None or answer.text is None:
            return answer
        text = answer.text.strip()
        return answer._replace(text=next((option for option in options if option.strip() == text), answer.text))

    async def _score(self, request: Request) -> ServedAnswer:
        """Return the log-probabilities of each option's tokens, by one question per row."""
        served = self.client.config
        if served.kind != "vllm":
            words = f"endpoint_scores: a server of kind {served.kind} scores no answers that it is given"
            return ServedAnswer(error=words)
        try:
            prompt, tokens = await self._tokens.of(request, as_chat=self._config.chat_template)
        except RefusedError as error:
            return ServedAnswer(error=str(error))
        if (bad := find_options_problem(request.options or (), list(map(len, tokens)))) is not None:
            return ServedAnswer(error=bad)
        prompts = [prompt + own for own in tokens]
        body = {
            "model": served.model,
            "prompt": prompts,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
            **served.body,
            **dict.fromkeys(COUNTED),
            "max_tokens": 1,
        }

        def read(found: JsonView, used: Usage) -> ServedAnswer:
            return ServedAnswer(num_prompt=len(prompt), truncated=False, by_option=read_scores(found, tokens))

        most = Usage(sum(map(len, prompts)), len(prompts))
        asked = {key: value for key, value in body.items() if value is not None}
        return await self._find_or_buy(ServerQuestion("/completions", asked, most, read))

    async def _find_or_buy(
        self, question: ServerQuestion[ServedAnswer], of_row: Mapping[str, int] | None = None
    ) -> ServedAnswer:
        """Return the answer to a question, reusing one that is paid for or awaited, even by another row.

        ``of_row`` (row and seed) restricts reuse to that row and seed, even if the body has no seed.
        """
        again = getattr(self._config.endpoint, "again", 0)
        asked = {"path": question.path, "body": question.body, "kind": self.client.config.kind, **(of_row or {})}
        key = hash_request({**asked, "again": again} if again else asked)
        if (known := self.client.paid.find(key)) is not None:
            return known
        under_way = self.client.under_way
        if key not in under_way:
            under_way[key] = asyncio.ensure_future(self._buy(key, question._replace(key=key)))
            under_way[key].add_done_callback(lambda _: under_way.pop(key))
        return await asyncio.shield(under_way[key])  # nobody may wait for it any more, but it is paid

    async def _buy(self, key: str, question: ServerQuestion[ServedAnswer]) -> ServedAnswer:
        paid = self.client.paid
        async with self.client.slots:
            while paid.is_asked_elsewhere(key):
                await asyncio.sleep(LOOK_SECONDS)
            if (known := paid.find(key)) is not None:
                return known
            try:
                answer, number, used, odd = await self.client.ask(question)
            except RefusedError as error:
                return ServedAnswer(error=str(error))
        if not answer.of_text:
            odd = {**odd, "other_tokens": quote_text(answer.text or "")}
        paid.got(number, key, used, answer, odd)
        return answer


def make_question(
    request: Request, decoding: DecodingConfig, config: AskConfig, seed: int
) -> tuple[str, Json, str | None]:
    """Return path and body of a question, and the field that holds the answer if a JSON object is asked for."""
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
    return path, {key: value for key, value in body.items() if value is not None}, field


def compute_most_usage(body: JsonView, max_tokens: int) -> Usage:
    """Return a question's most tokens: one per byte of its body, and its longest answers (else of ``max_tokens``)."""
    longest = max(body.get(name) or 0 for name in LENGTHS) or max_tokens
    answers = max(body.get(name) or 1 for name in NUMBERS_OF_ANSWERS)
    return Usage(len(json.dumps(body, ensure_ascii=False).encode()) + TEMPLATE_TOKENS, longest * answers)


class _ServersTokens:
    """A tokenizer of prompts and options that asks a vLLM server (``/tokenize``)."""

    def __init__(self, client: Client, config: EndpointConfig) -> None:
        root = urlsplit(config.url)
        self._client, self._model = client, config.model
        self._known: dict[tuple[bool, str, str], list[int]] = {}
        self._url = root._replace(path=re.sub(r"/v1$", "", root.path) + "/tokenize").geturl()

    async def of(self, request: Request, *, as_chat: bool) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of a prompt, and those that each option adds, split as by ``prompts.tokenise``.

        An option's tokens are cached by the option and the end of the prompt, since rows share options.
        """
        text, options = request.prompt, request.options or ()
        messages = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        prompt = await self._ask(messages if as_chat else {"prompt": text})
        end = "" if as_chat else text[text.rstrip().rfind("\n") + 1 :]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        found = [self._known.get((as_chat, end, option)) for option in options]
        for place, option in enumerate(options):
            if found[place] is None:
                joined = [] if as_chat else await self._ask({"prompt": text + option})
                follows = not as_chat and joined[: len(prompt)] == prompt
                plain = {"prompt": option, "add_special_tokens": False}
                own = joined[len(prompt) :] if follows else await self._ask(plain)
                self._known[as_chat, end, option] = found[place] = own
        return prompt, [own or [] for own in found]

    async def _ask(self, body: Mapping[str, object]) -> list[int]:
        def read(found: JsonView, used: Usage) -> list[int]:
            tokens = found.get("tokens")
            if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
                raise UnreadableError("no list of token ids")
            return tokens

        most = Usage(len(json.dumps(body)), 0)
        question = ServerQuestion(self._url, {"model": self._model, **body}, most, read)
        async with self._client.slots:
            asked = await self._client.ask(question)
        self._client.paid.freed(asked.number)
        return asked.answer


def _make_batch(
    rows: Sequence[tuple[Request, ServedAnswer]], decoding: DecodingConfig, num_logprobs: int, state_dtype: str
) -> pa.RecordBatch:
    """Return answers as a batch of ``schemas.make_completions_schema``, with scores of options that were scored."""
    answered = []
    for request, answer in rows:
        sums = scores = None
        if answer.error is not None:
            answer = ServedAnswer(num_prompt=answer.num_prompt, error=answer.error)
        elif answer.by_option is not None:
            sums = [sum(values) for values in answer.by_option]
            means = [value / len(of) for value, of in zip(sums, answer.by_option, strict=True)]
            scores = means if decoding.normalise_options else sums
            place = rank_options(scores)[0]
            own = answer.by_option[place]
            answer = answer._replace(text=(request.options or ())[place], logprobs=own, num_output=len(own))
        answered.append(
            AnsweredRow(
                row_id=request.row_id,
                completion=answer.text,
                num_prompt_tokens=answer.num_prompt,
                num_output_tokens=answer.num_output,
                truncated=answer.truncated,
                mean_logprob=sum(answer.logprobs) / len(answer.logprobs) if answer.logprobs else None,
                token_logprobs=answer.logprobs,
                margins=answer.margins,
                negentropies=answer.negentropies,
                option_logprobs=sums,
                option_scores=scores,
                error=answer.error,
            )
        )
    return completion_batch(answered, states={}, state_dtype=state_dtype, num_token_logprobs=num_logprobs)

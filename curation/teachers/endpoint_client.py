"""The client of a server: concurrent questions within limits of rate and money, and retries after errors.

The server's errors are of three kinds. After a transient error (429, 5xx, a lost connection, a timeout, content that is
no answer) the question is asked again, after a wait that doubles each time; all questions wait at least as long as
``Retry-After`` says. An error of one question (400, 413, 422) is the error of its row. An error that every question
would meet (a wrong key, an unknown model, an empty account, a redirect) ends the run. When a question has used up its
tries, its row has an error if other questions were answered meanwhile. If none was, the client asks the server for its
models: the run ends if the server does not answer, or if ``GONE`` questions in a row fail like this.

The configuration alone determines what is sent and where: no ``OPENAI_*`` variable of the environment is read, and no
redirect is followed. Only proxies come from the environment (``HTTPS_PROXY`` and the like).
"""

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, NoReturn, TypeVar

import httpx2

from curation.config.external import MILLION, EndpointConfig
from curation.errors import ConfigError, RunFailedError
from curation.escaping import escape_text
from curation.json_types import JsonView
from curation.teachers.completions import AnsweredRow
from curation.teachers.endpoint_answers import (
    NO_ROW,
    TryError,
    Usage,
    check_error,
    is_other,
    parse_billed_usage,
    read_answer,
    read_json,
    shorten_value,
)
from curation.teachers.endpoint_paid import Paid

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
LOOK_SECONDS = 0.05  # interval between checks for an answer that another process has asked for, in seconds
SHOWN_WAIT = 10.0  # minimum length of a server's pause that the progress shows, in seconds
CONNECT_SECONDS = 10.0
ERROR_BYTES = 2**16  # maximum number of bytes of an error response that are read
ANSWER_BYTES, TOKEN_BYTES = 2**20, 2**10
"""Maximum length of an answer: a number of bytes, and a further number for each token that it may describe."""
LONGEST_RETRY_AFTER = 3600.0
OF_ROWS = frozenset({400, 413, 422})  # status codes by which a server refuses one question
_KEY = "the key is missing or wrong (teacher.endpoint.key_env: {key}), on the nodes that ask"
_ADDRESS = "look at url and model, and at teacher.chat_template: true asks chat/completions, false completions"
REDIRECTS = range(300, 400)
MENDS = {
    301: "questions and key go to no other address than teacher.endpoint.url: set that to where the API is",
    402: "check the account there",
    **dict.fromkeys((401, 403), _KEY),
    **dict.fromkeys((404, 405, 501), _ADDRESS),
}
"""Remedies by the status code by which a server would refuse every question; 301 stands for all redirects."""
UNBILLED = OF_ROWS | MENDS.keys() | {429, 503}
"""Status codes that are never billed, since the server has written nothing; after others, such as 504, it may have."""
GONE = 8  # number of questions in a row whose tries all fail that ends the run
FAILED = "endpoint_failed"  # kind of the error of a row for which no try brought a response
Made = TypeVar("Made")


class RefusedError(Exception):
    """An error for a question that the server does not answer; it becomes the error of the row."""


class ServerQuestion(NamedTuple):
    """A question to the server."""

    path: str  # path below the API's address
    body: JsonView
    most: Usage  # maximum number of tokens that the question and its answer can take
    key: str  # hash under which the answer is found again
    field: str | None = None  # field of the answer's JSON object that holds the chosen option


class Client:
    """A client of one server for all threads of a process, one of ``num_actors`` that share its limits per minute."""

    def __init__(self, config: EndpointConfig, num_actors: int) -> None:
        self.config, self.paid = config, Paid(config.paid)
        self._secret: str | None = None
        if (name := config.key_env) is not None:
            self._secret = found = os.environ.get(name, "").strip()
            if not (found and found.isascii() and found.isprintable()):
                problem = "holds characters that no key has" if found else "is empty or not set"
                raise ConfigError(
                    f"teacher.endpoint.key_env: the environment variable {name} {problem} where the teacher runs; "
                    "set it on every node before Ray starts there"
                )
        rate = config.requests_per_minute
        self._pace = 0.0 if rate is None else 60.0 * num_actors / rate  # seconds between two requests
        self._free, self._paused_until, self._answered, self._num_open, self._failed = 0.0, 0.0, 0, 0, 0
        self.under_way: dict[str, asyncio.Future[AnsweredRow]] = {}  # from the server, by the question's hash
        self._settled, self._slots = asyncio.Condition(), asyncio.Semaphore(config.concurrency)
        try:
            self._http = httpx2.AsyncClient(
                headers={} if self._secret is None else {"authorization": f"Bearer {self._secret}"},
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),  # a whole answer has a deadline of its own
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=config.concurrency),
                follow_redirects=False,
            )
        except (ValueError, ImportError, httpx2.InvalidURL) as error:
            raise ConfigError(
                f"teacher.endpoint: a proxy of the environment cannot be used: {error}; set HTTPS_PROXY, "
                "HTTP_PROXY and ALL_PROXY to its address or unset them, where the teacher runs"
            ) from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Made]) -> "Future[Made]":
        """Start a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Write the record of paid answers and stop the event loop, abandoning open questions."""
        self.paid.flush()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    @property
    def pause(self) -> str:
        """Message on how long the server has asked to wait; empty if less than ``SHOWN_WAIT`` is left."""
        left = self._paused_until - time.monotonic()
        if left < SHOWN_WAIT:
            return ""
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
        return f"the server asks to wait until {until}, {left:.0f} s more (Retry-After)"

    async def ask(self, question: ServerQuestion) -> AnsweredRow:
        """Return the answer to a question, or its error, without a row's id; it is paid for at most once.

        Raise ``ConfigError`` if the server refuses all questions, ``RunFailedError`` if it does not answer or the
        money is spent.
        """
        if (found := self.paid.find(question.key)) is not None:
            return found
        if (awaited := self.under_way.get(question.key)) is None:
            awaited = self.under_way[question.key] = asyncio.ensure_future(self._buy(question))
            awaited.add_done_callback(lambda _: self.under_way.pop(question.key))
        return await asyncio.shield(awaited)  # it is paid, even if nobody waits for it any more

    async def _buy(self, question: ServerQuestion) -> AnsweredRow:
        async with self._slots:
            while self.paid.is_asked_elsewhere(question.key):
                await asyncio.sleep(LOOK_SECONDS)
            if (known := self.paid.find(question.key)) is not None:
                return known
            answered_before, tries = self._answered, 0
            while True:
                await self._wait_for_turn()
                number = await self._afford(question)
                try:
                    return await self._try_once(question, number)
                except TryError as error:
                    try:
                        seconds = self._find_pause(error, tries)
                        if tries >= self.config.retries:
                            await self._give_up(error, others_answered=self._answered > answered_before)
                    except RefusedError as refused:
                        return AnsweredRow(NO_ROW, error=str(refused))
                    if error.status == 429 and self._answered > answered_before:
                        answered_before = self._answered  # the server only limits the rate: it answers others
                    else:
                        tries += 1
                finally:
                    async with self._settled:
                        self._num_open -= 1
                        self._settled.notify_all()
                await asyncio.sleep(seconds)

    async def _try_once(self, question: ServerQuestion, number: int) -> AnsweredRow:
        """Return the answer of one try, or raise ``TryError``; its cost is recorded, and the answer too."""
        used = question.most
        try:
            found = read_json(await self._fetch_content(question, number))
            used, is_estimated = parse_billed_usage(found, question.most)
            check_error(found)
            answer, odd = read_answer(found, used, field=question.field)
        except TryError as error:
            if error.kind == "endpoint_answer":
                self.paid.lost(number, used, {"no_answer": error.words})
            raise
        self._answered, self._failed = self._answered + 1, 0
        odd = {**odd, "estimated": shorten_value(found.get("usage"))} if is_estimated else {**odd}
        if sum(used) > sum(question.most):
            odd["dear"] = f"{used.prompt:,} and {used.output:,}"
        if is_other(self.config.model, other := found.get("model")):
            odd["other_model"] = shorten_value(other)
        self.paid.got(number, question.key, used, answer, odd)
        return answer

    async def _fetch_content(self, question: ServerQuestion, number: int) -> bytes:
        """Return the body that the server sends; raise if it refuses, does not respond, or writes too much."""
        most, content = question.most, b""
        longest = ANSWER_BYTES + TOKEN_BYTES * (most.prompt + most.output * (1 + self.config.top_logprobs))
        url = f"{self.config.url}{question.path}"
        body, kind = json.dumps(question.body).encode(), {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(self.config.timeout_seconds),
                self._http.stream("POST", url, content=body, headers=kind) as response,
            ):
                longest = longest if response.is_success else ERROR_BYTES
                async for part in response.aiter_bytes():  # as the server wrote it, decompressed
                    content += part
                    if len(content) > longest:
                        break
        except TimeoutError:
            words = f"no whole answer in {self.config.timeout_seconds:g} s (timeout_seconds)"
            raise TryError(words, kind=FAILED) from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                self.paid.freed(number)  # it was never sent
            raise TryError(f"{type(error).__name__}: {error}", kind=FAILED) from None
        if response.is_success:
            if len(content) > longest:
                raise TryError(f"a body of more than {longest:,} bytes")
            return content
        if response.status_code in UNBILLED or response.is_redirect:
            self.paid.freed(number)
        words, code = parse_error(response.headers.get("location", "").encode() or content)
        waits = parse_retry_after(response.headers)
        raise TryError(words, status=response.status_code, code=code, retry_after=waits, kind=FAILED)

    async def _wait_for_turn(self) -> None:
        """Wait as ``requests_per_minute`` and the server require."""
        now = time.monotonic()
        begin = max(now, self._free)
        self._free = begin + self._pace
        await asyncio.sleep(begin - now)
        while (wait := self._paused_until - time.monotonic()) > 0:
            await asyncio.sleep(wait * (1 + 0.1 * random.random()))

    async def _afford(self, question: ServerQuestion) -> int:
        """Wait until there is money for a question, record it as sent and return its number.

        Without money, an open question may still cost less than was recorded for it; without one, the run fails.
        """
        price, limit, paid, most = self.config.price, self.config.limit, self.paid, question.most
        async with self._settled:
            while price is not None and limit is not None:
                paid.refresh(at_once=not self._num_open)
                spent = paid.spending.money(price) or 0.0
                if spent + price.of(*most) <= limit:
                    break
                if not self._num_open:
                    raise RunFailedError(
                        f"teacher.endpoint.limit: {limit:g} would be exceeded: {spent:.6g} is spent, and the next "
                        f"answer may cost {price.of(*most):.6g} ({most.prompt} and {most.output} tokens, at "
                        f"{price.input:g} and {price.output:g} a {MILLION:,}); answers that came are kept; raise the "
                        "limit, and run the same command"
                    )
                await self._settled.wait()
            self._num_open += 1
            return paid.sent(most, question.key)

    def _find_pause(self, error: TryError, tries: int) -> float:
        """Return the seconds until the next try, or raise if the error allows none."""
        status, words = error.status, self._describe_error(error)
        if status in OF_ROWS:
            raise RefusedError(f"endpoint_refused: {words}") from None  # the error itself may hold the key
        mend = MENDS.get(301 if status in REDIRECTS else 402 if error.code == "insufficient_quota" else status or 0)
        if mend is not None:
            mend = mend.format(key=self.config.key_env)
            raise ConfigError(f"teacher.endpoint: {self.config.url} refuses every question: {words}; {mend}") from None
        self._paused_until = max(self._paused_until, time.monotonic() + (error.retry_after or 0.0))
        return float(min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(tries, 10)) * random.uniform(0.5, 1))

    async def _give_up(self, error: TryError, *, others_answered: bool) -> NoReturn:
        """Raise the error of a question whose tries are used up; check the server if it answered no other question."""
        words, tries = self._describe_error(error), self.config.retries + 1
        self._failed += 1
        is_there = others_answered
        if not is_there and self._failed < GONE:
            with suppress(TimeoutError, httpx2.HTTPError, OSError, ValueError):
                async with (
                    asyncio.timeout(self.config.timeout_seconds),
                    self._http.stream("GET", f"{self.config.url}/models") as response,
                ):
                    is_there = response.status_code < 500
        if is_there:
            raise RefusedError(f"{error.kind}: {words}, {tries} times") from None
        raise RunFailedError(
            f"teacher.endpoint: {self.config.url} gave no answer to anything in {tries} tries, the last time: {words}; "
            "answers that came are kept: run the same command when it answers again"
        ) from None

    def _describe_error(self, error: Exception) -> str:
        """Return the error's message in one line, with the API key masked."""
        text = str(error).replace(self._secret, "***") if self._secret else str(error)
        return escape_text(" ".join(text.split())[:300])


def parse_error(content: bytes) -> tuple[str, object]:
    """Return the message in the body of an error response, and the error's name or None."""
    try:
        found = json.loads(content)
        error = found.get("error", found)
        return str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return content.decode(errors="replace"), None


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait, or ``None`` without a request (RFC 9110, section 10.2.3)."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER) if seconds == seconds else None

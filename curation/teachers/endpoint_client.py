"""Questions to a server: so many at once, at so many a minute, for so much money, and again after an error.

The server's errors are of three kinds. Those that the next try may not meet (429, 5xx, a lost connection, an answer
that takes too long) are met by waiting: as long as ``Retry-After`` says, all questions together, else twice as long
each time. Those of one question (400, 413, 422) are errors of its row. Those that every question would meet (a wrong
key, an unknown model, an empty account) end the run. Where the tries of a question are used up, it is its row's error
if others were answered meanwhile. If none was, the server is asked for its models: the run ends where it does not
answer that, and where ``GONE`` questions one after the other fail so.
"""

import asyncio
import importlib.util
import os
import random
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

from curation.config.endpoint import INSTALL, MILLION, EndpointConfig
from curation.errors import ConfigError, RunFailedError
from curation.json_types import JsonView
from curation.teachers.endpoint_answers import ServedAnswer, UnreadableError, Usage, read_json, usage_of
from curation.teachers.endpoint_paid import Paid

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
LONGEST_RETRY_AFTER = 3600.0
GONE = 8
"""Questions that fail one after the other, with all their tries, until the run ends."""
OF_ROWS = frozenset({400, 413, 422})
"""Refusals of one question."""
OF_ALL = frozenset({401, 402, 403, 404, 405, 501})
"""Refusals that every question would meet."""
UNBILLED = OF_ROWS | OF_ALL | {429, 503}
"""Refusals for which no server asks money: it has written nothing. After others, as 504, it may have."""

Made = TypeVar("Made")


class RefusedError(Exception):
    """A question that the server does not answer, as the error of its row."""


class Billed(NamedTuple):
    """A server's answer, and the number under which it was noted as sent."""

    content: JsonView
    number: int
    used: Usage


class EvenPace:
    """Spreads amounts evenly, so many a minute."""

    def __init__(self, per_minute: float) -> None:
        self._seconds, self._free = 60.0 / per_minute, 0.0

    def take(self, amount: float, now: float) -> float:
        """Take an amount; seconds to wait before it is used."""
        begin = max(now, self._free)
        self._free = begin + amount * self._seconds
        return begin - now

    def correct(self, amount: float) -> None:
        """An earlier amount was larger by so much, or smaller."""
        self._free += amount * self._seconds


class Client:
    """One server, asked by all threads of a process through one event loop.

    Args:
        config: where the server is, and its limits.
        num_actors: over how many processes the limits a minute are spread.
    """

    def __init__(self, config: EndpointConfig, num_actors: int) -> None:
        self.config, self.paid = config, Paid(config.paid)
        self._secret = _secret(config.key_env)
        self._paces = [
            (None if rate is None else EvenPace(rate / num_actors))
            for rate in (config.requests_per_minute, config.tokens_per_minute)
        ]
        self._paused_until, self._answered, self._under_way, self._failed = 0.0, 0, 0, 0
        self._mean_output: float | None = None
        self.under_way: dict[str, asyncio.Future[ServedAnswer]] = {}
        """Answers that are bought at the moment, by question."""
        if importlib.util.find_spec("openai") is None:
            raise ConfigError(INSTALL)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()
        self.run(self._open()).result()

    async def _open(self) -> None:
        import openai  # heavy

        self._errors = openai
        self._settled = asyncio.Condition()
        self._slots = asyncio.Semaphore(self.config.concurrency)
        self._api = openai.AsyncOpenAI(
            api_key=self._secret or "none",
            base_url=self.config.url,
            timeout=self.config.timeout_seconds,
            max_retries=0,  # ours know the limits
        )

    def run(self, work: Coroutine[Any, Any, Made]) -> "Future[Made]":
        """Start work in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the event loop; what is under way is given up."""
        self.paid.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    async def ask(self, path: str, body: Mapping[str, object], most: Usage) -> Billed:
        """The answer to a question, which is noted as sent and not yet as answered.

        Raises:
            RefusedError: it is refused, fails again and again, or its answer cannot be read.
            RunFailedError: the server is gone, or the money.
            ConfigError: the server refuses every question.
        """
        async with self._slots:
            answered_before, tries = self._answered, 0
            while True:
                guess = await self._wait_for_turn(most)
                number = await self._afford(most)
                try:
                    return await self._once(path, body, number, most, guess)
                except self._errors.APIError as error:
                    if tries >= self.config.retries:
                        await self._give_up(error, others_answered=self._answered > answered_before)
                    seconds = self._judge(error, tries)
                    if isinstance(error, self._errors.RateLimitError) and self._answered > answered_before:
                        answered_before = self._answered  # the limit is the server's way: it answers others meanwhile
                    else:
                        tries += 1
                finally:
                    async with self._settled:
                        self._under_way -= 1
                        self._settled.notify_all()
                await asyncio.sleep(seconds)

    async def _once(self, path: str, body: Mapping[str, object], number: int, most: Usage, guess: float) -> Billed:
        import httpx2

        try:
            response = await self._api.post(path, cast_to=httpx2.Response, body=dict(body))
            content = response.content
        except self._errors.APIStatusError as error:
            if error.status_code in UNBILLED:
                self.paid.freed(number)
            raise
        self._answered, self._failed = self._answered + 1, 0
        try:
            found = read_json(content)
        except UnreadableError as error:
            found = {"unreadable": str(error)}
        used = usage_of(found) or most
        if self._paces[1] is not None:
            self._paces[1].correct(sum(used) - guess)
        self._mean_output = used.output if self._mean_output is None else 0.9 * self._mean_output + 0.1 * used.output
        return Billed(found, number, used)

    async def _wait_for_turn(self, most: Usage) -> float:
        """Wait as the limits a minute and the server want it; about how many tokens were taken for the question."""
        now, guess = time.monotonic(), self._guess(most)
        taken = zip(self._paces, (1, guess), strict=True)
        waits = [0.0 if pace is None else pace.take(amount, now) for pace, amount in taken]
        if (wait := max(waits)) > 0:
            await asyncio.sleep(wait)
        while (wait := self._paused_until - time.monotonic()) > 0:
            await asyncio.sleep(wait * (1 + 0.1 * random.random()))
        return guess

    def _guess(self, most: Usage) -> float:
        """About how many tokens a question takes: four bytes are one, and answers are as long as others were."""
        return most.prompt / 4 + (most.output if self._mean_output is None else min(most.output, self._mean_output))

    async def _afford(self, most: Usage) -> int:
        """Note a question as sent, once there is money for it.

        Raises:
            RunFailedError: there is none, and nothing is under way that may cost less than it was noted with.
        """
        price, limit, paid = self.config.price, self.config.limit, self.paid
        async with self._settled:
            while price is not None and limit is not None:
                paid.refresh(at_once=not self._under_way)
                spent = paid.spending.money(price) or 0.0
                if spent + price.of(*most) <= limit:
                    break
                if not self._under_way:
                    raise RunFailedError(
                        f"teacher.endpoint.limit: {limit:g} would be passed: {spent:.6g} is spent, and the next answer "
                        f"may cost {price.of(*most):.6g} ({most.prompt} and {most.output} tokens, at {price.input:g} "
                        f"and {price.output:g} a {MILLION:,}); what came is kept; raise the limit, and run "
                        "the same command"
                    )
                await self._settled.wait()
            self._under_way += 1
            return paid.sent(most)

    def _judge(self, error: object, tries: int) -> float:
        """Seconds until the next try.

        Raises:
            RefusedError, ConfigError: there is none.
        """
        status, words = getattr(error, "status_code", None), self._words(error)
        if status in OF_ROWS:
            raise RefusedError(f"endpoint_refused: {words}") from None  # the error itself may hold the key
        if status in OF_ALL or getattr(error, "code", None) == "insufficient_quota":
            url, mend = self.config.url, self._mend(status)
            raise ConfigError(f"teacher.endpoint: {url} refuses every question: {words}{mend}") from None
        response = getattr(error, "response", None)
        asked_for = None if response is None else retry_after(response.headers)
        if asked_for is not None:
            self._paused_until = max(self._paused_until, time.monotonic() + asked_for)
            return 0.0
        return float(min(LONGEST_WAIT, FIRST_WAIT * 2**tries) * random.uniform(0.5, 1))

    async def _give_up(self, error: object, *, others_answered: bool) -> None:
        """The end of a question whose tries are used up.

        Raises:
            RefusedError, RunFailedError, ConfigError: always.
        """
        self._judge(error, 0)
        words, tries = self._words(error), self.config.retries + 1
        self._failed += 1
        if others_answered or (self._failed < GONE and await self._is_there()):
            raise RefusedError(f"endpoint_failed: {words}, {tries} times") from None
        raise RunFailedError(
            f"teacher.endpoint: {self.config.url} gave no answer to anything in {tries} tries, the last time: {words}; "
            "what came is kept: run the same command when it answers again"
        ) from None

    async def _is_there(self) -> bool:
        """Whether the server answers at all."""
        import httpx2

        try:
            await self._api.get("/models", cast_to=httpx2.Response)
        except self._errors.APIStatusError as error:
            return bool(error.status_code < 500)
        except self._errors.APIError:
            return False
        return True

    def _mend(self, status: int | None) -> str:
        if status in (401, 403):
            found = "endpoint.key_env is not set" if self.config.key_env is None else f"see {self.config.key_env}"
            return f"; the key is missing or wrong ({found}), on the nodes that ask"
        if status in (404, 405, 501):
            return (
                "; look at url and model, and at teacher.chat_template: true asks chat/completions, false completions"
            )
        return "; look at the account there"

    def _words(self, error: object) -> str:
        """The error in one line, without the key."""
        status = getattr(error, "status_code", None)
        text = str(error).replace(self._secret, "***") if self._secret else str(error)
        return f"{type(error).__name__ if status is None else status}: {' '.join(text.split())[:300]}"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait; ``None`` if it does not say (RFC 9110, section 10.2.3)."""
    text = headers.get("retry-after-ms")
    try:
        if text is not None:
            return min(max(0.0, float(text) / 1000), LONGEST_RETRY_AFTER)
        if (text := headers.get("retry-after")) is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError):
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER) if seconds == seconds else None


def _secret(name: str | None) -> str | None:
    if name is None:
        return None
    if not (found := os.environ.get(name, "").strip()):
        raise ConfigError(
            f"teacher.endpoint.key_env: the environment variable {name} is empty or not set where the teacher runs; "
            "set it on every node before Ray starts there"
        )
    return found

"""A domain in whose hands actors die: chess, but that reading a row's answer may end or hang the process, once."""

import importlib
import os
import signal
import time
from pathlib import Path

from curation.domains.chess import Chess


class Fatal(Chess):
    """``fate`` is ``killed`` or ``hangs``: then the engine's next step does not end."""

    name = "fatal"

    def __init__(self, *, fatal, log, fate):
        self._fatal, self._log, self._fate = fatal, Path(log), fate

    def parse(self, completion, example):
        if example["fen"] == self._fatal:
            try:
                (self._log / "died").touch(exist_ok=False)
            except FileExistsError:
                return super().parse(completion, example)
            if self._fate == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            LLMEngine = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
            LLMEngine.step = lambda engine: time.sleep(600)
        return super().parse(completion, example)

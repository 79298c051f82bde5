"""A kill before any call that changes the disk: a report and an export are the old ones or the new ones, whole."""

import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from curation.commands.export import files
from curation.storage.paths import write_atomically

CHANGING = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "chmod")


def dies(calls: int, work: Callable[[], object]) -> bool:
    """Do work in a process that is killed before its call number ``calls``; False where it makes fewer."""
    if child := os.fork():
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = [calls]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def once(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return once

    try:
        for name in CHANGING:
            setattr(os, name, counted(getattr(os, name)))
        files.exchange = counted(files.exchange)
        work()
    finally:
        os._exit(0)


def export(target: Path, text: str) -> None:
    with files.write_folder(target, force=True) as folder:
        for name in ("a", "b", files.LINEAGE):
            (folder / name).write_text(text)


def held(target: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in target.iterdir()} if target.is_dir() else {}


def whole(text: str) -> dict[str, str]:
    return dict.fromkeys(("a", "b", files.LINEAGE), text)


@pytest.mark.long
@pytest.mark.parametrize("before", [whole("old"), {}], ids=["replaces one", "is the first"])
@pytest.mark.parametrize("swaps", [True, False], ids=["at once", "by two names"])
def test_a_killed_export_is_the_old_one_or_the_new_one_and_the_next_call_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, str], swaps: bool
) -> None:
    if not swaps:
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
    for calls in count():
        target = tmp_path / f"killed-{calls}"
        if before:
            export(target, "old")
        if not dies(calls, partial(export, target, "new")):
            break
        left = (before, whole("new")) if swaps else (before, whole("new"), {})  # between two names there is none
        assert held(target) in left, f"killed at call {calls}"
        export(target, "newer")
        assert held(target) == whole("newer")
    assert held(target) == whole("new") and calls > 5


def test_a_killed_report_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    for calls in count():
        write_atomically(page, "old")
        if not dies(calls, partial(write_atomically, page, "new")):
            break
        assert page.read_text() in ("old", "new")
    assert page.read_text() == "new" and calls > 2

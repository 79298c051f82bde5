"""Lines that are appended are there whole, at the offset that is told, or not at all."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_disk import small_disk

from curation.storage.files import append_lines
from curation.teachers.completions import AnsweredRow
from curation.teachers.endpoint_answers import Usage
from curation.teachers.endpoint_paid import Paid


@contextmanager
def no_file_above(num_bytes: int) -> Iterator[None]:
    """Writes are cut at this size of a file, as a full disk cuts them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_offsets_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert [append_lines(path, line) for line in (b"one\n", b"two\nthree\n", b"")] == [0, 4, 14]
    path.write_bytes(b"one\nha")  # a process was killed
    assert append_lines(path, b"two\n") == 7 and path.read_bytes() == b"one\nha\ntwo\n"


def test_a_write_that_is_cut_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_lines(path, b"x" * 99 + b"\n")
    with no_file_above(150), pytest.raises(OSError, match="No space left"):
        append_lines(path, b"y" * 99 + b"\n")
    assert path.read_bytes() == b"x" * 99 + b"\n"
    assert append_lines(path, b"z\n") == 100


@pytest.mark.timeout(60)
def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic links|Is a pipe"):
            append_lines(tmp_path / name, b"line\n")
    assert (tmp_path / "mine").read_text() == "mine"


def buy(paid: Paid, numbers: range) -> list[int]:
    """Ask and pay; return the questions that could be sent."""
    sent = []
    for number in numbers:
        try:
            at = paid.sent(Usage(10, 10), f"q{number}")
        except OSError:
            continue
        paid.got(at, f"q{number}", Usage(5, 5), answer_of(number), {})
        sent.append(number)
    return sent


def answer_of(number: int) -> AnsweredRow:
    return AnsweredRow(0, f"answer {number} " + "x" * 97 * (number % 7))


def texts_of(paid: Paid, sent: list[int]) -> list[str | None]:
    """The kept answers to the questions of these numbers."""
    return [paid.find(f"q{number}").completion for number in sent]  # type: ignore[union-attr]


def test_a_full_disk_costs_no_answer_that_was_paid(tmp_path: Path) -> None:
    """Once there is room again, all answers are found: in this process, and by the next one."""
    paid = Paid(str(tmp_path))
    buy(paid, range(10))
    (path,) = tmp_path.iterdir()
    with no_file_above(path.stat().st_size + 700):
        sent = [*range(10), *buy(paid, range(10, 36))]
        assert 12 <= len(sent) < 36
        with pytest.raises(OSError, match=r"No space left|too large"):
            paid.flush()
    sent += buy(paid, range(36, 40))
    paid.flush()
    for reader in (paid, Paid(str(tmp_path))):
        assert texts_of(reader, sent) == [answer_of(number).completion for number in sent]
        assert reader.spending.questions == len(sent) and not reader.spending.open
        assert reader.spending.tokens == Usage(5 * len(sent), 5 * len(sent))


def test_a_disk_that_is_really_full_does_the_same(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk:
        paid = Paid(str(disk / "paid"))
        buy(paid, range(10))
        with (disk / "fill").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(1 << 20))
        sent = [*range(10), *buy(paid, range(10, 200))]
        (disk / "fill").unlink()
        sent += buy(paid, range(200, 210))
        paid.flush()
        found = Paid(str(disk / "paid"))
        assert texts_of(found, sent) == [answer_of(number).completion for number in sent]

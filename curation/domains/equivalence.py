r"""Whether two final answers of mathematics say the same, in bounded time (paper: latexsympy; here math-verify).

An answer is rewritten (:func:`canonical`) and taken apart: lists and sets as sets, tuples and intervals place by place,
percent signs, plain numbers. Single expressions are left to math-verify, in a process of its own: its only bound is
``signal.alarm``, which knows the main thread alone. That process is killed and replaced when it takes too long, its
memory is limited, and it ends with its parent.

Beyond math-verify: units, currency and degree signs are dropped; a percent sign may be dropped or mean a hundredth; a
list is equal in any order, and what it repeats (``4/\sqrt5`` or ``4\sqrt5/5``) counts once; ``\pm`` is two answers;
``3:1`` is a ratio; two numerals with a base need the same base; ``i`` is imaginary; ``\log`` is natural; words are
compared as words, not as products of letters; numbers that differ by more than one part in 10,000 are unequal however
small they are, where math-verify rounds to six decimals.
"""

import functools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

from curation.errors import CurationError

MAX_CHARS = 4000
"""Longer answers are refused unless they are identical."""
MAX_DEPTH = 50
"""Brackets in brackets."""
MAX_PAIRS = 4096
"""Pairs of items of two lists."""
MEMORY_BYTES = 2**30
START_SECONDS = 120.0
"""The comparing process needs a second or two; a busy machine may need far more."""
TOLERANCE = Fraction(1, 10_000)
DECIMALS = 6

Atom = Callable[[str, str], bool]
"""Compares two canonical expressions, gold first."""


class Exploded(Exception):
    """Answers that cannot be compared within the bounds."""


class _Undecided(Exception):
    """Needs math-verify."""


class Equivalence:
    """Compares answers; all instances in a process share one comparing process, started when it is first needed.

    Args:
        timeout: seconds for one comparison, without the start of its process.
    """

    def __init__(self, *, timeout: float = 5.0) -> None:
        self._timeout = timeout
        self.num_exploded = 0
        """Comparisons that were refused, ran out of time or memory, or ended their process; they count as unequal."""

    def same(self, label: str, gold: str) -> bool:
        """Whether ``label`` says what ``gold`` says."""
        try:
            return same(gold, label, atom=_undecided)
        except _Undecided:
            verdict = _ask(gold, label, self._timeout)
        except Exploded:
            verdict = None
        self.num_exploded += verdict is None
        return bool(verdict)


def _undecided(gold: str, label: str) -> bool:
    raise _Undecided


# --- Taking answers apart


def same(gold: str, label: str, *, atom: Atom) -> bool:
    """Whether two answers say the same; ``atom`` decides on expressions that are no plain numbers and differ in text.

    Raises:
        Exploded: an answer that is too long or too deep, or lists of too many items.
    """
    gold, label = gold.strip(), label.strip()
    if gold == label:
        return bool(gold)
    if max(len(gold), len(label)) > MAX_CHARS:
        raise Exploded
    gold, label = canonical(gold), canonical(label)
    if not gold or not label:
        return False
    if _squeezed(gold) == _squeezed(label):
        return True
    if _WORDS.search(gold) or _WORDS.search(label):
        return _letters(gold) == _letters(label)
    golds, labels = _items(gold), _items(label)
    if len(golds) * len(labels) > MAX_PAIRS:
        raise Exploded
    if len(golds) == len(labels) == 1:
        return _same_item(golds[0], labels[0], atom)
    if all(any(_same_item(one, other, atom) for other in labels) for one in golds):
        return all(any(_same_item(one, other, atom) for one in golds) for other in labels)
    single = golds if len(golds) == 1 else labels if len(labels) == 1 else []
    return any(Number.read(item) is None for item in single) and atom(gold, label)  # such as x \in \{1, 2\}


def _same_item(gold: str, label: str, atom: Atom) -> bool:
    if _squeezed(gold) == _squeezed(label):
        return True
    if gold.endswith("%") or label.endswith("%"):
        return _same_shares(gold, label, atom)
    bases = bool(_BASED.fullmatch(gold)) + bool(_BASED.fullmatch(label))
    if bases:
        return bases == 1 and _same_item(gold.partition("_")[0], label.partition("_")[0], atom)
    one, other = Number.read(gold), Number.read(label)
    left, right = _Bracketed.read(gold), _Bracketed.read(label)
    if one and other:
        return one.near(other)
    if left and right:
        return (
            left.brackets == right.brackets
            and len(left.parts) == len(right.parts)
            and all(_same_item(*pair, atom) for pair in zip(left.parts, right.parts, strict=True))
        )
    return not ((one or left) and (other or right)) and atom(gold, label)


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def _same_shares(gold: str, label: str, atom: Atom) -> bool:
    one, other = gold.rstrip("% "), label.rstrip("% ")
    if not one or not other:
        return False
    if gold.endswith("%") and label.endswith("%"):
        return _same_item(one, other, atom)
    hundredths = [
        rf"\frac{{{text}}}{{100}}" if whole.endswith("%") else text for text, whole in ((one, gold), (other, label))
    ]
    return _same_item(one, other, atom) or _same_item(hundredths[0], hundredths[1], atom)


class Number(NamedTuple):
    """A plain number; ``decimal`` where it was written with a decimal point, and may be rounded."""

    value: Fraction
    decimal: bool

    @classmethod
    def read(cls, text: str) -> Self | None:
        """An integer, decimal, fraction, mixed number or ratio in canonical form; ``None`` for all else."""
        found = _NUMBER.fullmatch(text)
        if not found:
            return None
        sign = -1 if found["sign"] == "-" else 1
        if found["decimal"]:
            return cls(sign * Fraction(found["decimal"]), "." in found["decimal"])
        over = Fraction(found["over"] or found["right"])
        if not over:
            return None
        return cls(sign * (int(found["whole"] or 0) + Fraction(found["top"] or found["left"]) / over), "." in text)

    def near(self, other: "Number") -> bool:
        """Equality; where one is a decimal, to six decimals and one part in 10,000."""
        if not (self.decimal or other.decimal):
            return self.value == other.value
        return round(self.value, DECIMALS) == round(other.value, DECIMALS) and abs(self.value - other.value) <= (
            TOLERANCE * max(abs(self.value), abs(other.value))
        )


_DIGITS = r"\d{1,300}"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d{{0,300}})?|\.{_DIGITS})"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s?(?:(?P<decimal>{_DECIMAL})|(?P<left>{_DIGITS})\s?[/:]\s?(?P<right>{_DIGITS})"
    rf"|(?:(?P<whole>{_DIGITS})\s?(?=\\frac\{{\d))?\\frac\{{(?P<top>-?{_DECIMAL})\}}\{{(?P<over>{_DECIMAL})\}})"
)


class _Bracketed(NamedTuple):
    """A tuple or an interval."""

    brackets: str
    parts: list[str]

    @classmethod
    def read(cls, text: str) -> Self | None:
        inner = text[1:-1]
        if text[:1] not in ("(", "[") or text[-1] not in (")", "]") or _closes(inner):
            return None
        parts = _split(inner)
        return cls(text[0] + text[-1], parts) if len(parts) > 1 else None


def _closes(text: str) -> bool:
    r"""Whether a bracket closes in ``text`` that opens before it, as between the ends of ``(1, 2) \cup (3, 4)``."""
    return any(depth < 0 for _, depth in _depths(text))


def _items(text: str) -> list[str]:
    r"""The items of a list or a set, two for an item with a ``\pm``; one for all else."""
    if text.startswith(r"\{") and text.endswith(r"\}") and not _closes(text[2:-2]):
        text = text[2:-2]
    if _TUPLES.fullmatch(text):
        text = re.sub(r"\) *\(", "),(", text)
    items = []
    for item in _split(text):
        both = item.count(r"\pm") + item.count(r"\mp") == 1
        items += [re.sub(r"\\pm|\\mp", sign, item) for sign in "+-"] if both else [item]
    return items


def _split(text: str) -> list[str]:
    """The parts of ``text`` between the commas and semicolons that stand in no brackets."""
    parts = [""]
    for token, depth in _depths(text):
        if token in (",", ";") and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts if part.strip()]


def _depths(text: str) -> list[tuple[str, int]]:
    """The tokens of ``text``, each with the number of brackets that are open after it."""
    depth, tokens = 0, []
    for token in _TOKEN.findall(text):
        depth += (token in _OPENING) - (token in _CLOSING)
        tokens.append((token, depth))
    return tokens


_OPENING = {"(", "[", "{", r"\{", r"\begin", r"\lfloor", r"\lceil", r"\langle"}
_CLOSING = {")", "]", "}", r"\}", r"\end", r"\rfloor", r"\rceil", r"\rangle"}


# --- Rewriting


def canonical(text: str) -> str:
    r"""An answer with one spelling for what LaTeX spells in many ways.

    Without delimiters, sizes, spaces for looks, units, thousands separators; arguments of ``\frac``, ``\sqrt``, ``^``,
    ``_`` in braces; words in ``\text{}``.

    Raises:
        Exploded: brackets too deep.
    """
    text = _MENDED.sub(lambda found: _MENDS[found[0]], text)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    depths = _depths(_THOUSANDS.sub("", text))
    if any(abs(depth) > MAX_DEPTH for _, depth in depths):
        raise Exploded
    text = re.sub(r"\s+", " ", _rebuilt([token for token, _ in depths])).strip(" =").rstrip(_ENDS)
    while text.startswith("{") and text.endswith("}") and not _closes(text[1:-1]):
        text = text[1:-1].strip().rstrip(_ENDS)
    if _TRIGONOMETRY.search(text):
        text = re.sub(r"(\d+(?:\.\d+)?)°", r"\\frac{\1\\pi}{180}", text)
    text = _AND.sub(",", _PERCENT.sub("%", text.replace("°", "")))
    text = _SYMBOLS.sub(r"\1", _UNIT.sub(r"\1", text)).strip(" =").rstrip(_ENDS)
    text = _REPEATING.sub(_fraction, text)
    text = _GROUPED.sub(lambda found: re.sub("[, ]", "", found[0]), text)
    return re.sub(r"^\(([A-Z])\)$", r"\1", text.replace(r"\{\}", r"\emptyset"))


def _rebuilt(tokens: list[str]) -> str:
    """The text of ``tokens``, read from the right, so that a command meets its arguments complete."""
    right: list[str] = []  # what follows, the nearest last; a group in braces is one entry

    def skip() -> None:
        while right and right[-1].isspace():
            right.pop()

    def argument(*, digits: bool = False) -> str:
        skip()
        if not right or right[-1] == "}":
            return ""
        taken = right.pop()
        while digits and (taken[-1].isdigit() or taken == "-") and right and right[-1].isdigit():
            taken += right.pop()
        return taken[1:-1].strip() if taken.startswith("{") else taken

    for token in reversed(tokens):
        entry = token = _SPELLING.get(token, token)
        if token == "{":
            inner = []
            while right and (part := right.pop()) != "}":
                inner.append(part)
            entry = f"{{{''.join(inner)}}}" if inner != [","] else ""
        elif token in _ARITY:
            skip()
            while token == r"\sqrt" and right and "[" in (right[-1], entry[5:6]) and entry[-1] != "]":
                entry += right.pop()
            entry += "".join(f"{{{argument()}}}" for _ in range(_ARITY[token]))
        elif token in ("^", "_"):
            raised = argument(digits=True)
            entry = "°" if raised == r"\circ" else f"{token}{{{raised}}}"
        elif token in _FONTS:
            words = argument()
            entry = words if _FONTS[token] and len(words) == 1 else rf"\text{{{words}}}"
        elif token == r"\phantom":
            argument()
            entry = ""
        elif token == r"\log" and not (right and right[-1].startswith("_")):
            entry = r"\ln"
        if entry:
            right.append(entry)
    return "".join(entry for entry in reversed(right) if entry != "}")


def _fraction(repeating: re.Match[str]) -> str:
    whole, once, again = repeating.groups()
    top = int(whole + once + again) - int(whole + once or "0")
    return rf"\frac{{{top}}}{{{10 ** len(once) * (10 ** len(again) - 1)}}}"


def _letters(text: str) -> str:
    return re.sub(r"[^\w+\-=<>/^*]", "", text.replace(r"\text", "")).casefold()


_ENDS = " .,;:"
_TOKEN = re.compile(r"\\(?:left|right)\s*\.|\\[a-zA-Z]+|\\.|.", re.DOTALL)
_ARITY = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1, r"\mathbb": 1, r"\overline": 1}
"""How many arguments a command takes."""
_FONTS = {
    **dict.fromkeys([r"\text", r"\textbf", r"\textit", r"\textrm", r"\textnormal", r"\mbox"], False),
    **dict.fromkeys([r"\mathrm", r"\mathbf", r"\mathit"], True),
}
"""Commands that set words; whether a single letter is a symbol in them, and no unit."""
_SPELLINGS = {
    "": r"\left \right \left. \right. \displaystyle \boxed \fbox \approx \! \( \) \[ \] $ \$ € £ “ ” \big \Big",
    " ": r"\, \; \: \> ~ \quad \qquad",
    r"\frac": r"\dfrac \tfrac \cfrac",
    r"\binom": r"\dbinom \tbinom",
    r"\leq": r"\le \leqslant ≤",
    r"\geq": r"\ge \geqslant ≥",
    r"\neq": r"\ne ≠",
    r"\emptyset": r"\varnothing ∅",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
    "%": r"\%",
    "°": r"\degree",
    "-": "\N{MINUS SIGN} \N{EN DASH}",
    ",": "\N{FULLWIDTH COMMA}",
    ";": "\N{FULLWIDTH SEMICOLON}",
    "(": "\N{FULLWIDTH LEFT PARENTHESIS}",
    ")": "\N{FULLWIDTH RIGHT PARENTHESIS}",
    r"\cup": "\N{UNION}",
    r"\times": "\N{MULTIPLICATION SIGN}",
    r"\cdot": "·",
    r"\pm": "±",
    r"\pi": "π",
    r"\sqrt": "√",
    r"\infty": "∞",
    "^{2}": "²",
    "^{3}": "³",
}
_SPELLING = {r"\ ": " ", **{old: new for new, olds in _SPELLINGS.items() for old in olds.split()}}
_MENDS = {"\x08": r"\b", "\x0c": r"\f", "\t": r"\t", "rac": r"\frac"}
"""Commands whose backslash was taken for an escape, as twelve rows of Omni-MATH have them."""
_MENDED = re.compile(r"[\x08\x0c\t](?=[a-z]{3})|(?<![a-zA-Z\\\x0c])rac(?=\{)")
_THOUSANDS = re.compile(r"(?<=\d),\s*\\!\s*(?=\d{3})")
_GROUPED = re.compile(r"^(?:[a-zA-Z] ?= ?)?-?\d{1,3}(?:[, ]\d{3})+(?=$|\.|%| ?\\)")
_REPEATING = re.compile(r"(\d{0,50})\.(\d{0,50})\\overline\{(\d{1,50})\}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_PERCENT = re.compile(r"\\text\{ ?percent ?\}|\bpercent\b")
_AND = re.compile(r"\\text\{[ ,]*(?:and|or|AND|OR) ?\}|\b(?:and|or|AND|OR)\b")
_SYMBOLS = re.compile(r"\\text\{((?:[^\W\d_]?[^{}\w]|\d)*[^\W\d_]?)\}")
_NO_UNIT = r"(?:\d|=|\b(?:if|for|when|where|otherwise|is|are|such|with|more|less|[AaPp]\.?[Mm])\b)"
_UNIT = re.compile(
    rf"^(.*(?:[\d)}}]|\\pi)) ?(?:\\text\{{(?![^{{}}]*{_NO_UNIT})[^{{}}]*\}}|(?:(?:square|sq\.?|cubic|cu\.?) )?"
    r"(?:degrees?|dollars?|cents?|inch(?:es)?|feet|foot|ft|yards?|miles?|mph|[ckm]m|kg|met(?:er|re)s?|minutes?|hours?|seconds?"
    r"|days?|weeks?|months?|years?|units?))(?:\^\{[23]\})?$"
)
_TUPLES = re.compile(r"(?:\([^(),]*,[^()]*\) *)+")
_BASED = re.compile(r"-?[\dA-F.]+_\{\d+\}")
_WORDS = re.compile(r"\\text\{|\\gcd|(?<![a-zA-Z\\])(?<!\\begin\{)(?<!\\end\{)[a-zA-Z]{4,}")


# --- The comparing process


class _Helper:
    """A process that runs :func:`_serve`; it ends when the connection to its parent closes."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        program = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"  # without its package's imports
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
        theirs.close()
        if self._receive(START_SECONDS) is None:
            self.close()
            raise CurationError(
                "math: the process that compares answers did not start; see its message above, and whether "
                "'python -c \"import math_verify\"' works"
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, gold: str, label: str, timeout: float) -> bool | None:
        """The process's verdict; ``None`` where it gave none in ``timeout`` seconds, and is of no more use."""
        try:
            self._connection.send_bytes(json.dumps([gold, label, timeout]).encode())
        except OSError:  # it is dead
            return None
        return self._receive(timeout)

    def _receive(self, timeout: float) -> bool | None:
        try:
            verdict: bool | None = json.loads(self._connection.recv_bytes()) if self._connection.poll(timeout) else None
            return verdict
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


_lock = threading.Lock()
_helper: _Helper | None = None


@functools.lru_cache(maxsize=2**12)
def _ask(gold: str, label: str, timeout: float) -> bool | None:
    """The comparing process's verdict; ``None`` where it took too long or ended."""
    global _helper
    with _lock:
        helper = _helper if _helper and _helper.alive else _Helper()
        _helper = None  # it comes back after a whole exchange alone: an interrupt would leave an answer in the pipe
        verdict = helper.ask(gold, label, timeout)
        if verdict is None:
            helper.close()
        else:
            _helper = helper
    return verdict


def _forget() -> None:
    """A forked child must not talk through its parent's pipe, nor wait for a thread that it lacks."""
    global _helper, _lock
    _helper, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _serve(connection: Connection) -> None:
    """Answer comparisons until the other end closes."""
    import logging
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    logging.disable()  # math-verify warns that it has no time limit of its own
    _verify("x", "x+1")  # imports
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES if hard < 0 else min(MEMORY_BYTES, hard), hard))
    connection.send_bytes(b"true")
    while True:
        try:
            gold, label, timeout = json.loads(connection.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, timeout + 1)  # ends this process where its parent has died meanwhile
        try:
            verdict = same(gold, label, atom=_verify)
        except (Exploded, MemoryError, RecursionError):
            verdict = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(verdict).encode())


def _verify(gold: str, label: str) -> bool:
    """Math-verify's word on two canonical expressions, and that they are not two numbers apart."""
    from math_verify import verify

    try:
        left, right = _read(gold), _read(label)
        return not _apart(left, right) and bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # latex2sympy raises just that for what it cannot read
        return False


@functools.lru_cache(maxsize=256)
def _read(text: str) -> Any:
    """A canonical expression in sympy."""
    import sympy
    from math_verify.parser import parse_latex_cached

    expression = parse_latex_cached(text)
    return expression.subs({symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"})


def _apart(left: Any, right: Any) -> bool:
    """Whether both are numbers that differ by more than the tolerance."""
    import sympy

    if not (getattr(left, "is_number", False) and getattr(right, "is_number", False)):
        return False
    one, other = sympy.N(left, 30), sympy.N(right, 30)
    difference = abs(one - other)
    return bool(difference.is_comparable and difference > sympy.Rational(*TOLERANCE.as_integer_ratio()) * abs(one))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[2])))

"""Draws ``docs/architecture.svg``: the floors of the code, the roof first. Run it as ``python docs/architecture.py``.

The floors are the import contract of ``pyproject.toml``, the words are the first sentences of the docstrings, and the
numbers are the steps of ``docs/architecture.md`` that name a file of the box. Only the standard library is needed.
"""

import ast
import re
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "architecture.svg"

# Pixels.
WIDTH, LEFT, TOP, GAP, PAD = 1060, 44, 62, 7, 7
NAME_SIZE, WORD_SIZE, LINE, CHIP = 13, 11, 14, 17
LETTER = 5.6
"""The width of a letter of the words, with room for fonts wider than Helvetica."""
DARK, GREY, STEP, LIGHT, HEAVY = "#1a1a1a", "#8a8f98", "#1f4e9c", "#e4f3e4", "#f1f3f8"


class Box(NamedTuple):
    """A module or a folder of the code."""

    name: str
    words: str
    is_light: bool
    """Whether it must know neither Ray nor torch."""
    steps: Sequence[int]
    """The steps of the page that name one of its files."""


class Floor(NamedTuple):
    """Modules that may import what is below them, and not each other."""

    boxes: Sequence[Box]
    is_kept: bool = True
    """Whether the contract names it; false of the modules that no floor names."""


def floors() -> list[Floor]:
    """The content of the picture, the roof first; modules that the contract does not name come last."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    light = {
        name
        for contract in contracts
        if "ray" in contract.get("forbidden_modules", ())
        for name in contract["source_modules"]
    }
    steps = steps_of(PAGE.read_text())
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = [[name.strip() for name in layer.split("|")] for layer in layers]
    others = sorted(set(modules()) - {name for floor in named for name in floor})

    def box(module: str) -> Box:
        name = module.removeprefix("curation.") + ("/" if file_of(module).name == "__init__.py" else ".py")
        return Box(name, first_sentence(module), module in light, steps.get(module, ()))

    kept = [Floor([box(module) for module in floor]) for floor in named]
    return [*kept, Floor([box(module) for module in others], is_kept=False)] if others else kept


def modules() -> list[str]:
    """``train``, ``tune``, and the modules and folders at the top of ``curation``."""
    paths = list((ROOT / "curation").iterdir())
    files = [path.stem for path in paths if path.suffix == ".py" and path.stem != "__init__"]
    folders = [path.name for path in paths if (path / "__init__.py").is_file()]
    return [*(f"curation.{name}" for name in files + folders), "train", "tune"]


def file_of(module: str) -> Path:
    """The file that has the docstring of a module or a folder."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def first_sentence(module: str) -> str:
    """The first sentence of a module's docstring, without marks."""
    text = ast.get_docstring(ast.parse(file_of(module).read_text())) or ""
    plain = re.sub(r":\w+:`|`", "", " ".join(text.partition("\n\n")[0].split()))
    return re.split(r"\.(?:\s|$)", plain, maxsplit=1)[0]


def steps_of(page: str) -> Mapping[str, Sequence[int]]:
    """The numbers of the page's steps (``## 3. Prepare``), by the modules whose files they name."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number, section in re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        named = re.findall(r"`(?:(train|tune)/|curation/(\w+)(?:/|\.py))[\w/.]*`", section)
        for module in {train or f"curation.{name}" for train, name in named}:
            found[module].append(int(number))
    return found


def draw() -> str:
    """The picture as SVG; equal code gives equal text."""
    parts: list[str] = []
    top, foot = TOP, TOP
    for floor in floors():
        top += 0 if floor.is_kept else 2 * GAP
        height = _draw_floor(parts, floor, top)
        top += height + GAP
        foot = top if floor.is_kept else foot
    return "\n".join([*_frame(top, foot - GAP), *parts, "</svg>", ""])


def _frame(height: int, foot: int) -> list[str]:
    """The beginning of the picture: title, legend, and the arrow down to ``foot``."""
    middle, x = (TOP + foot) // 2, LEFT // 2
    legend = [(LEFT, LIGHT, "must know neither Ray nor torch"), (LEFT + 230, HEAVY, "may know them")]
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="Helvetica, Arial, sans-serif" fill="{DARK}">',
        "<title>The floors of the code, and the steps of one row through them</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 24, "The floors of the code: each imports only from floors below it", 17, bold=True),
        *(
            f'<rect x="{x0}" y="36" width="14" height="14" rx="3" fill="{fill}" stroke="{GREY}"/>'
            + _text(x0 + 20, 47, words, WORD_SIZE)
            for x0, fill, words in legend
        ),
        _chip(LEFT + 350, 36, 1),
        _text(LEFT + 372, 47, "a step of docs/architecture.md that names a file in the box", WORD_SIZE),
        f'<path d="M {x} {TOP} V {foot - 8}" stroke="{GREY}" stroke-width="2" fill="none"/>',
        f'<path d="M {x - 6} {foot - 10} H {x + 6} L {x} {foot} Z" fill="{GREY}"/>',
        f'<g transform="rotate(-90 {x - 6} {middle})">'
        + _text(x - 6, middle, "imports run downwards", WORD_SIZE, anchor="middle")
        + "</g>",
    ]


def _draw_floor(parts: list[str], floor: Floor, top: int) -> int:
    """Draw a floor and return its height."""
    if not floor.is_kept:
        parts.append(_text(LEFT, top + 9, "On no floor of the contract:", WORD_SIZE))
        return 14 + _draw_boxes(parts, floor, top + 14)
    return _draw_boxes(parts, floor, top)


def _draw_boxes(parts: list[str], floor: Floor, top: int) -> int:
    num = len(floor.boxes)
    width = (WIDTH - LEFT - GAP * num) // num
    texts = [
        textwrap.wrap(box.words, int((width - 2 * PAD) / LETTER), max_lines=2 if num < 4 else 4, placeholder=" ...")
        for box in floor.boxes
    ]
    height = 2 * PAD + LINE + LINE * max(len(lines) for lines in texts)
    dashes = "" if floor.is_kept else ' stroke-dasharray="4 3"'
    for place, (box, lines) in enumerate(zip(floor.boxes, texts, strict=True)):
        x = LEFT + place * (width + GAP)
        fill = LIGHT if box.is_light else HEAVY
        parts.append(
            f'<rect x="{x}" y="{top}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="{GREY}"{dashes}/>'
        )
        parts.append(_text(x + PAD, top + PAD + 10, box.name, NAME_SIZE, bold=True))
        for number, line in enumerate(lines, 1):
            parts.append(_text(x + PAD, top + PAD + 9 + LINE * number, line, WORD_SIZE))
        right = x + width - PAD + 2
        parts += [_chip(right - CHIP * (len(box.steps) - at), top + 4, step) for at, step in enumerate(box.steps)]
    return height


def _chip(x: int, y: int, step: int) -> str:
    """The number of a step, white on blue."""
    rect = f'<rect x="{x}" y="{y}" width="{CHIP - 2}" height="14" rx="7" fill="{STEP}"/>'
    return rect + _text(x + CHIP // 2 - 1, y + 10, str(step), 10, anchor="middle", fill="#ffffff")


def _text(x: int, y: int, words: str, size: int, *, bold: bool = False, anchor: str = "", fill: str = "") -> str:
    marks = {"font-weight": "bold" if bold else "", "text-anchor": anchor, "fill": fill}
    extra = "".join(f' {name}="{value}"' for name, value in marks.items() if value)
    return f'<text x="{x}" y="{y}" font-size="{size}"{extra}>{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(PICTURE)

"""The pages: references are those of the code, commands parse, links lead somewhere, messages stand in the code."""

import ast
import html
import re
import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from curation.cli import main
from curation.config import RunConfig

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
END = {";", "|", "||", "&", "&&", "(", ")", ">", ">>", "<"}
"""Where a command ends within a line of shell."""
PUT_IN = r"\.\.\.|\b[A-Z][A-Z_:]{2,}\b|\S+\.\S+"
"""Dots, capitals, and names with a dot stand for what is put into a message."""
SYSTEM = {"No space left on device", "Read-only file system"}
"""Messages of the operating system."""

ANSWERS = {
    "analysis": "adds a section Why it works to the report",
    "architecture": "A run is a graph of stages",
    "benchmarks": "choose the best 1 % of 10^8 rows",
    "budget": "half the number of right labels",
    "chain": "The student of one generation is the teacher of the next",
    "configuration": "curate init my.yaml writes a commented file",
    "endpoints": "The teacher may be a model behind a server",
    "evidence": "in mate in one yes",
    "examples": "curate run examples/mcqa.yaml",
    "exports": "curate filter PACKAGE POOL -o OUT --keep 0.1",
    "extending": "one new file and one line",
    "glossary": "one question: a puzzle, a problem, a text",
    "gpus": "actors: {min: 1, max: 8, num_gpus: 1}",
    "how-it-works": "This is the path of one row",
    "index": "curate init --data labelled.csv unlabelled.csv",
    "labelled-rows": "200 to 500",
    "method": "The first table says where each element of the method is implemented",
    "operations": "Storage that all nodes share",
    "data-forms": "Look up here what your rows need besides",
    "own-data": "take them to a",
    "paper": "curate run examples/paper/NAME.yaml",
    "quickstart": "make run",
    "real-models": "trust ranks labels better",
    "report": "Read its first line, the verdict",
    "running": "run it; watch it",
    "students": "student.method names how students are trained",
    "troubleshooting": "take the name that is given",
    "trust": "trust.kind names the function by which the arm trust ranks",
    "verdict": "the gravest finding decides",
}
"""Words that answer the question of a page, or begin its list of answers, as a reader sees them; by page."""
FIRST_SCREEN = 1_600
"""Characters of text on a first screen."""


class Command(NamedTuple):
    """A call of ``curate``."""

    page: str
    words: tuple[str, ...]
    """What follows ``curate``."""


def split(text: str) -> list[str]:
    """The words of a line of shell; operators are words of their own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def calls(line: str) -> Iterator[tuple[str, ...]]:
    """The calls of ``curate`` in a line, those that it quotes for another shell too."""
    words = split(line)
    for place, word in enumerate(words):
        if word.startswith("curate ") and " " in word:
            yield from calls(word)
        if word != "curate" and not word.endswith("/curate"):
            continue
        rest = words[place + 1 :]
        yield tuple(rest[: next((at for at, found in enumerate(rest) if found in END), len(rest))])


@cache
def parsed(path: Path) -> list[Token]:
    """A page as Markdown."""
    return MarkdownIt("gfm-like", {"linkify": False}).parse(path.read_text())


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    for token in parsed(path):
        if token.type == "fence":
            yield token.info.strip(), token.content


def fenced() -> list[Command]:
    """The commands of all shell blocks."""
    found = []
    for path in PAGES:
        for language, text in blocks(path):
            if language == "sh":
                lines = text.replace("\\\n", " ").splitlines()
                found += [Command(path.name, words) for line in lines for words in calls(line)]
    return found


def spans(path: Path) -> list[str]:
    """The code that stands within sentences and tables."""
    tokens = parsed(path)
    inline = [child for token in tokens if token.type == "inline" for child in token.children or ()]
    return [" ".join(child.content.split()) for child in inline if child.type == "code_inline"]


@cache
def texts_of_code() -> list[str]:
    """The texts in the code, with ``{}`` for what is put in when it runs."""
    found = []
    for folder in ("curation", "train", "tune"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                    found.append("".join(map(str, parts)))
    return found


def named(words: tuple[str, ...], group: click.Group = main) -> str | None:
    """What is wrong with the verb and the names of options of a call that need not be whole."""
    context = click.Context(group)
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb == "" or verb.isupper() or not re.fullmatch(r"[a-z-]+", verb):
        return None if group is main or not verb else f"{verb} is none of {', '.join(group.commands)}"
    command = group.get_command(context, verb)
    if command is None:
        return f"no command is called {verb}"
    if isinstance(command, click.Group):
        return named(words[words.index(verb) + 1 :], command)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return next((f"{verb} has no {option}" for option in given if option not in known), None)


def keys() -> dict[str, Any]:
    """The names of docs/keys.py, made anew."""
    return runpy.run_path(str(DOCS / "keys.py"))


@pytest.mark.parametrize("name", ["commands", "metrics"])
def test_the_references_are_those_of_the_code(name: str):
    script = runpy.run_path(str(DOCS / f"{name}.py"))
    assert script["draw"]() == script["PAGE"].read_text(), f"run `python docs/{name}.py`"


def test_the_pages_of_keys_are_those_of_the_code():
    drawn = keys()["draw"]()
    pages = {path: path.read_text() for path in (DOCS / "reference").glob("*.md")}
    assert {path: pages.get(path) for path in drawn} == drawn, "run `python docs/keys.py`"
    assert pages.keys() - drawn.keys() == {DOCS / "reference" / "commands.md", DOCS / "reference" / "metrics.md"}
    headings = {line.removeprefix("## ").replace("`", "") for text in drawn.values() for line in text.splitlines()}
    assert {key for part in keys()["PARTS"].values() for key in part.sections} <= headings


@pytest.mark.parametrize("name", ["quickstart", "mcqa", "grpo", "own"])
def test_kept_reports_show_keys_that_exist(name: str):
    page = (ROOT / "examples" / "reports" / f"{name}.html").read_text()
    (text,) = [found for found in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL) if "\nrun_dir: " in found]
    RunConfig.model_validate(yaml.safe_load(html.unescape(text)))


def test_the_main_page_takes_so_many_keys():
    script = keys()
    script["draw"].__globals__["MOST_KEYS"] = 9
    with pytest.raises(ValueError, match=r"configuration.md has \d+ keys, at most 9 may be; name"):
        script["draw"]()


def test_every_key_says_what_it_means():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", text, re.M)
    assert len(rows) > 400
    listed = "`"  # a type that begins so lists the values
    assert [key for key, of_type, _, meaning in rows if not meaning and not of_type.startswith(listed)] == []


def test_every_command_of_the_pages_parses():
    found = fenced()
    assert len(found) > 30 and {command.words[0] for command in found} >= {"run", "filter", "review", "inspect"}
    above = click.Context(main, **main.context_settings)  # a command keeps the help option of its first context
    for page, (verb, *arguments) in found:
        command, context = main.get_command(above, verb), above
        if isinstance(command, click.Group):
            context = click.Context(command, parent=above)
            command, (verb, *arguments) = command.get_command(context, arguments[0]), arguments
        assert command is not None, f"{page}: no command is called {verb}"
        try:
            command.make_context(verb, list(arguments), parent=context)
        except click.ClickException as error:
            pytest.fail(f"{page}: curate {verb} {shlex.join(arguments)}: {error.format_message()}")


def test_commands_of_the_pages_stand_in_shell_blocks():
    for path in PAGES:
        loose = [text for language, text in blocks(path) if language == "" and re.search(r"^curate ", text, re.M)]
        assert loose == [], f"{path.name}: begin the block with ```sh"


def test_commands_in_sentences_name_verbs_and_options_that_exist():
    quoted = [(path.name, text) for path in PAGES for text in spans(path) if text.startswith("curate ")]
    assert len(quoted) > 100
    wrong = [(page, text, found) for page, text in quoted if (found := named(tuple(text.split()[1:])))]
    assert wrong == []


@pytest.mark.long
def test_commands_that_messages_name_exist():
    advice = {found for text in texts_of_code() for found in re.findall(r"`(curate [a-z][^`]*)`", text)}
    assert len(advice) > 20
    assert [(text, found) for text in advice if (found := named(tuple(text.split()[1:])))] == []


def test_a_wrong_command_is_found():
    assert named(("plan", "CONFIG", "--prob")) == "plan has no --prob"
    assert named(("plann", "CONFIG")) == "no command is called plann"
    assert named(("review", "drawn", "RUN_DIR")) == "no command is called drawn"
    assert named(("review", "RUN_DIR", "--num", "3")) == "RUN_DIR is none of draw, export, import, result"
    assert named(("review", "draw", "RUN_DIR", "--nam")) == "draw has no --nam"
    assert named(("review", "draw", "RUN_DIR", "--num", "3")) is None
    assert list(calls("ray exec c.yaml 'curate run a.yaml --wait' && curate report b # and so on")) == [
        ("run", "a.yaml", "--wait"),
        ("report", "b"),
    ]


def test_targets_and_modules_of_shell_blocks_exist():
    text = "\n".join(text for path in PAGES for language, text in blocks(path) if language == "sh")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make ([a-z-]+)", text, re.M)) <= targets
    pages = [path for path in PAGES if path.parent.name != "log"]  # the log has commands of its time
    modules = {name for path in pages for name in re.findall(r"python -m (benchmarks\.\w+)", path.read_text())}
    assert len(modules) > 20
    places = {name: ROOT / name.replace(".", "/") for name in modules}
    missing = [name for name, at in places.items() if not (at.with_suffix(".py").is_file() or at.is_dir())]
    assert missing == []


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    tokens = parsed(path)
    heads = [after for token, after in pairwise(tokens) if token.type == "heading_open"]
    texts = ["".join(part.content for part in head.children or () if part.type != "image") for head in heads]
    slugs = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts]
    return {
        slug if slugs[:place].count(slug) == 0 else f"{slug}-{slugs[:place].count(slug)}"
        for place, slug in enumerate(slugs)
    }


def test_links_lead_to_files_and_headings():
    known = {path: anchors(path) for path in PAGES}
    dead, number = [], 0
    for path in PAGES:
        tokens = parsed(path)
        inline = [child for token in tokens if token.type == "inline" for child in token.children or ()]
        for child in inline:
            link = child.attrGet("href" if child.type == "link_open" else "src")
            if link is None or re.match(r"[a-z]+:", str(link)):
                continue
            number += 1
            file, _, anchor = str(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or (anchor and anchor not in known.get(target, {anchor})):
                dead.append(f"{path.name}: {link}")
    assert number > 200
    assert dead == []


def test_the_readme_fits_on_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 75


def seen(path: Path) -> str:
    """The text of a page as a reader sees it, without marks, in one line."""
    found: list[str] = []
    for token in parsed(path):
        if token.type == "fence":
            found.append(token.content)
        elif token.type == "inline":
            found.append("".join(child.content or " " for child in token.children or ()))
    return " ".join(" ".join(found).split())


def test_the_first_screen_of_each_page_answers_its_question():
    assert set(ANSWERS) == {path.stem for path in DOCS.glob("*.md")}
    late = {name: seen(DOCS / f"{name}.md").find(words) for name, words in ANSWERS.items()}
    assert {name: place for name, place in late.items() if not 0 <= place < FIRST_SCREEN} == {}


def test_own_data_shows_the_configuration_that_it_runs():
    texts = [text for language, text in blocks(DOCS / "own-data.md") if language == "yaml"]
    (own,) = texts
    assert own == (ROOT / "examples" / "own_data" / "own.yaml").read_text()


def test_messages_of_the_page_stand_in_the_code():
    """Each message of the table in its words, but for what is put in."""
    tables = (DOCS / "troubleshooting.md").read_text().split("| message |")[1:]
    firsts = [row.split("|")[1] for table in tables for row in table.partition("\n\n")[0].splitlines()[2:]]
    messages = [message for first in firsts for message in re.findall(r"`([^`]+)`", first)]
    assert len(messages) > 40
    code = "\n".join(" ".join(text.split()) for text in texts_of_code())
    unknown = []
    for message in set(messages) - SYSTEM:
        parts = [part.strip(" :;,") for part in re.split(PUT_IN, message)]
        unknown += [(message, part) for part in parts if len(part) > 2 and part not in code]
    assert unknown == []


def test_paths_and_tests_that_pages_name_are_there(tmp_path: Path):
    links = runpy.run_path(str(DOCS / "links.py"))
    named = [page for page in PAGES if not {page.name, page.parent.name} & {*links["TO_BE_MADE"], "CHANGELOG.md"}]
    assert list(links["not_there"](named)) == []
    page = tmp_path / "page.md"
    page.write_text(
        "`curation/arms.py` `trust/neural.py` `test_docs.py::test_links_lead_to_files_and_headings` `my/own.yaml`\n"
        "`curation/nowhere.py`, `test_none.py`, `test_docs.py::test_of_nothing`, `::test_nowhere_at_all`\n"
        "`trust/no.py`\n"
    )
    assert list(links["not_there"]([page])) == [
        "page.md: curation/nowhere.py is not there",
        "page.md: test_none.py is not there",
        "page.md: test_docs.py has no test_of_nothing",
        "page.md: tests has no test_nowhere_at_all",
        "page.md: trust/no.py is not there",
    ]

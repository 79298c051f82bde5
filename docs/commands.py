"""Writes ``docs/reference/commands.md``: every command, from click. Run it as ``python docs/commands.py``."""

import inspect
from pathlib import Path

import click

from curation.cli import main

PAGE = Path(__file__).resolve().parent / "reference" / "commands.md"
INTRO = f"""\
# Every command

<!-- written by docs/{Path(__file__).name} -->

`curate COMMAND -h` prints the same. [Running, watching, resuming](../running.md) says when to use which;
[Troubleshooting](../troubleshooting.md) has the exit codes.

| command | does |
| --- | --- |"""


def commands() -> dict[str, click.Command]:
    """The commands in the order of ``curate --help``."""
    context = click.Context(main, info_name="curate")
    found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def described(name: str, command: click.Command) -> list[str]:
    """A command: its usage, its help and its options."""
    context = click.Context(command, info_name=name, **main.context_settings)
    usage = " ".join(["curate", name, *command.collect_usage_pieces(context)])
    lines = [f"## curate {name}\n", f"```text\n{usage}\n```\n"]
    lines += [f"{' '.join(text.split())}\n" for text in inspect.cleandoc(command.help or "").split("\n\n")]
    options = [param for param in command.params if isinstance(param, click.Option)]
    if not options:
        return lines
    lines += ["| option | meaning |", "| --- | --- |"]
    for option in options:
        names = ", ".join(f"`{text}`" for text in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" `{option.make_metavar(context)}`"
        shown = f" Default: `{option.default}`." if option.show_default else ""
        lines.append(f"| {names}{value} | {(option.help or '') + shown} |".replace("`|`", "`\\|`"))
    return [*lines, ""]


def draw() -> str:
    """The page; equal commands give equal text."""
    found = commands()
    heads = [
        f"| [`curate {name}`](#curate-{name}) | {command.get_short_help_str(200)} |" for name, command in found.items()
    ]
    parts = [line for name, command in found.items() for line in described(name, command)]
    return "\n".join([INTRO, *heads, "", *parts]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(draw())
    print(PAGE)

"""Writes ``docs/reference/commands.md``: every command, from click. Run it as ``python docs/commands.py``."""

import inspect
from pathlib import Path

import click

from curation.cli import RARE, main

PAGE = Path(__file__).resolve().parent / "reference" / "commands.md"
INTRO = f"""\
# Every command

<!-- written by docs/{Path(__file__).name} -->

`curate COMMAND -h` prints the same. [Running, watching, resuming](../running.md) says when to use which;
[Troubleshooting](../troubleshooting.md) has the exit codes.
"""


def commands(group: click.Group = main, above: str = "") -> dict[str, click.Command]:
    """The commands in the order of ``curate --help``, each after its group."""
    context = click.Context(group, info_name="curate")
    made: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            made[f"{above}{name}"] = command
        if isinstance(command, click.Group):
            made |= commands(command, f"{above}{name} ")
    return made


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
    heads = {
        name: f"| [`curate {name}`](#curate-{name.replace(' ', '-')}) | {command.get_short_help_str(200)} |"
        for name, command in found.items()
    }
    usual, rare = ([head for name, head in heads.items() if (name in RARE) == few] for few in (False, True))
    parts = [line for name, command in found.items() for line in described(name, command)]
    table = "| command | does |\n| --- | --- |"
    return "\n".join([INTRO, table, *usual, "\nWhat only a few runs need:\n", table, *rare, "", *parts]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(draw())
    print(PAGE)

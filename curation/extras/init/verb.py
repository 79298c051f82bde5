"""The command ``curate init``. Like ``curation.cli``, it imports heavy modules only when it runs."""

from importlib.resources import files
from pathlib import Path

import click

from curation.errors import ConfigError
from curation.escaping import echo

MODEL = "Qwen/Qwen3-0.6B"
"""Default teacher model."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[CONFIG] | --data LABELLED [UNLABELLED]")
@click.option("--data", is_flag=True, help="Write a configuration for these files.")
@click.option("-o", "--output", metavar="CONFIG", help="With --data: the file to write (default: curation.yaml).")
@click.option(
    "--domain", metavar="NAME", help="The task: classification, mcqa, math, text, pair or chess (default: guessed)."
)
@click.option("--answer", metavar="COLUMN", help="The column with the right answer.")
@click.option("--text", metavar="A,B", help="The column or columns that the teacher reads.")
@click.option("--choices", metavar="A,B", help="The columns with the options of a question.")
@click.option("--model", metavar="MODEL", help=f"The teacher: a folder or a hub id (default: {MODEL}).")
def init(paths: tuple[str, ...], data: bool, output: str | None, model: str | None, **hinted: str | None) -> None:
    """Write a commented configuration to CONFIG (default: curation.yaml).

    With --data, it is for your own files (CSV, JSONL, Parquet or Lance): a labelled and an unlabelled one, or a
    labelled one alone, whose rows are split. The task is inferred from their columns and values. What cannot be
    inferred is an error that names the option to give.
    """
    if not data:
        given = {"output": output, **{name: hinted[name] for name in ("domain", "answer", "text", "choices")}}
        if options := [f"--{name}" for name, value in {**given, "model": model}.items() if value is not None]:
            raise ConfigError(f"{', '.join(options)}: describes your files; name them by --data")
        if len(paths) > 1:
            raise ConfigError(
                f"{' '.join(paths)}: give one CONFIG to write, or --data for a configuration for your files"
            )
        path = Path(paths[0] if paths else "curation.yaml")
        _write(path, (files("curation") / "template.yaml").read_text())
        echo(f"wrote {path}; next: edit sources and models, then `curate validate {path}`")
        return
    path = Path(output or "curation.yaml")
    _require_new(path)
    from curation.config.load import load_config
    from curation.extras.init.draft import draft_config
    from curation.extras.init.table import look
    from curation.extras.init.task import TaskHints, detect_task

    tables = []
    for name in paths:
        tables.append(look(name))
        echo(f"{name}: {tables[-1].num_rows:,} rows, columns {tables[-1].listed}")
    listed = {
        option: tuple(name.strip() for name in (hinted[option] or "").split(",") if name.strip())
        for option in ("text", "choices")
    }
    hints = TaskHints(domain=hinted["domain"], answer=hinted["answer"], text=listed["text"], choices=listed["choices"])
    task = detect_task(tables, hints)
    for reason in task.why:
        echo(reason)
    _write(path, draft_config(task, path, model or MODEL, guessed_model=model is None))
    load_config(str(path))
    is_guess = model is None and task.given is None
    teacher = f"; the teacher is {MODEL}, a guess: --model names another" if is_guess else ""
    echo(f"wrote {path}{teacher}; next: look at it, then `curate validate {path}`")


def _require_new(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path}: exists already; name another file or move it away")


def _write(path: Path, text: str) -> None:
    _require_new(path)
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error

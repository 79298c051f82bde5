"""The options of ``curate doctor``, which imports what is heavy when it runs."""

import sys
from collections import Counter
from typing import Any

import click

from curation.commands.options import SET, with_own_modules
from curation.errors import ConfigError
from curation.escaping import echo


@click.command()
@click.argument("config", required=False, callback=with_own_modules)
@SET
@click.option("--address", help="Ray cluster to check, as `--set ray.address=...`.")
@click.option("--vllm", is_flag=True, help="Start vLLM even if the configuration does not use it.")
@click.option(
    "--cluster", is_flag=True, help="Let an actor on every node label rows, and write them to the run's store."
)
def doctor(config: str | None, overrides: tuple[str, ...], **asked: Any) -> None:
    """Check machine, packages, storage and Ray, and say how to fix each problem.

    With a CONFIG, also check everything that it needs. The exit code is 1 if any check fails.
    """
    if overrides and config is None:
        raise ConfigError("--set: needs a CONFIG to override")
    from curation.commands.doctor import examine

    states: Counter[str] = Counter()
    for finding in examine(config, overrides, **asked):
        echo(finding.line)
        states[finding.state] += 1
    echo(f"{states['ok']} ok, {states['warn']} warn, {states['fail']} fail")
    sys.exit(1 if states["fail"] else 0)

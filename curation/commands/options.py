"""Arguments and options that several commands share, and the text of a command line."""

import json
from pathlib import Path
from typing import TypeVar

import click

from curation import own_modules
from curation.redaction import redact_text
from curation.storage.paths import to_place

T = TypeVar("T")


def with_own_modules(ctx: click.Context, parameter: click.Parameter, value: T) -> T:
    """Make modules beside a configuration file importable, but none of a run directory or a package."""
    path = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    if isinstance(path, str) and Path(path).is_file():
        own_modules.search_beside(path)
    return value


CONFIG = click.argument("config", type=click.Path(dir_okay=False), callback=with_own_modules)
RUN = click.argument("config", type=click.Path(), callback=with_own_modules)
INPUTS = click.argument("inputs", nargs=-1, required=True, metavar="CONFIG | PACKAGE POOL", callback=with_own_modules)
SET = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, e.g. seed=1.")
ADDRESS = click.option("--address", help="Ray cluster to join: HOST:PORT, or auto. Overrides ray.address.")
ALLOW_CODE = click.option(
    "--allow-code",
    multiple=True,
    metavar="MODULE:NAME",
    help="Code that the package may name: it is imported and run, so read it first.",
)
WAIT = click.option("--wait", is_flag=True, help="If another run is using the directory, wait until it ends.")

Overrides = tuple[str, ...]


def find_run_config(config: str, overrides: Overrides) -> tuple[str, Overrides]:
    """Return the path of the configuration and the overrides; a run directory stands for its last configuration."""
    if not to_place(config).is_dir():
        return config, overrides
    return str(to_place(config) / "config.yaml"), (*overrides, f"run_dir={json.dumps(config)}")


def add_address(address: str | None, overrides: Overrides) -> Overrides:
    """Return the overrides, with the value of ``--address`` added if it is given."""
    return overrides if address is None else (*overrides, f"ray.address={address}")


def format_command(verb: str, config: str, overrides: Overrides) -> str:
    """Return the command line with credentials redacted."""
    return redact_text(" ".join([f"curate {verb}", config, *(f"--set {override}" for override in overrides)]))

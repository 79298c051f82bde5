"""``curate``: the command line. Heavy modules are imported when a command runs, so that ``--help`` answers at once."""

import signal
import sys
import time
from typing import Any

import click

from curation.activity import get_current_activity
from curation.errors import CurationError, describe_file_error, describe_lance_error, is_panic
from curation.escaping import echo, get_logger
from curation.namesakes import claim
from curation.periodic import every
from curation.redaction import redact_text
from curation.registry import load_code
from curation.stopping import Stopped, stopped_by_signals
from curation.telemetry.console import is_too_quiet, say

_COMMANDS, _EXTRAS = "curation.commands", "curation.extras"
USUAL = {
    "init": f"{_EXTRAS}.init.verb:init",
    "validate": f"{_COMMANDS}.run_verbs:validate",
    "plan": f"{_EXTRAS}.plan.verb:plan",
    "run": f"{_COMMANDS}.run_verbs:run",
    "status": f"{_COMMANDS}.run_verbs:status",
    "report": f"{_COMMANDS}.run_verbs:report",
    "inspect": f"{_COMMANDS}.export_verbs:inspect",
    "review": f"{_EXTRAS}.review.verb:review",
    "tune": f"{_COMMANDS}.run_verbs:tune",
    "export": f"{_EXTRAS}.hub.verb:export_rows",
    "export-student": f"{_EXTRAS}.hub.verb:export_student",
    "export-trust": f"{_COMMANDS}.export_verbs:export_trust",
    "filter": f"{_COMMANDS}.run_verbs:filter_pool",
}
"""Commands in the order in which a user meets them, each as ``module:NAME``, imported when it is called."""
RARE = {
    "ablate": f"{_EXTRAS}.ablate.verb:ablate",
    "analyze": f"{_EXTRAS}.analyze.verb:analyze",
    "explain": f"{_EXTRAS}.explain.verb:explain",
    "verify": f"{_COMMANDS}.export_verbs:verify",
    "clean": f"{_COMMANDS}.export_verbs:clean",
    "doctor": f"{_COMMANDS}.export_verbs:doctor",
}
"""Commands that few runs need, in the same form."""
RESUMABLE = frozenset({"run", "tune", "ablate", "filter", "analyze"})
"""Commands that continue from committed results when they are run again."""
SLOW = RESUMABLE | {"validate", "plan", "report", "export", "export-student", "export-trust", "doctor"}
"""Commands that may work long before they print."""


class _Verbs(click.Group):
    """The group of commands, which prints errors in one line. Exit codes: 2 user error, 1 failed run, 3 shifted pool.

    SIGINT at any time gives 130 and SIGTERM 143, with a line that says what is kept.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of ``--help``."""
        return [*USUAL, *RARE]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command by its name, or ``None`` if there is none of that name."""
        found: click.Command | None = super().get_command(ctx, name)
        if found is None and (path := (USUAL | RARE).get(name)) is not None:
            found = load_code(path)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their two headings."""
        for heading, names in (("Commands", USUAL), ("What only a few runs need", RARE)):
            room = formatter.width - 6 - max(map(len, names))
            commands = {name: command for name in names if (command := self.get_command(ctx, name)) is not None}
            with formatter.section(heading):
                formatter.write_dl([(name, command.get_short_help_str(room)) for name, command in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        begun = time.monotonic()

        def look() -> None:  # whether the command has printed nothing for long
            verb = ctx.invoked_subcommand  # known once the command begins
            if verb in SLOW and is_too_quiet(begun, patience=1.35):
                words = get_current_activity() or "preparing"
                say(f"curate {verb}: at work for {time.monotonic() - begun:.0f} s ({words})")

        def farewell(number: signal.Signals) -> None:
            is_kept = ctx.invoked_subcommand in RESUMABLE
            kept = "; committed rows are kept: run the same command to continue" if is_kept else ""
            echo(f"curate: ended by {number.name} without waiting for running stages{kept}", err=True)

        with stopped_by_signals(farewell) as signals, every(0.5, look):
            try:
                return self._invoke(ctx)
            except BaseException as stop:  # what the first signal made fail was stopped, too
                if signals.first is None:
                    raise
                words = str(stop) if isinstance(stop, KeyboardInterrupt | Stopped) else ""
                if ctx.invoked_subcommand in RESUMABLE:
                    words = f"{words or 'no stage was running'}; run the same command to continue"
                echo(f"curate: stopped by {signals.first.name}{': ' if words else ''}{words}", err=True)
                signals.end()

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            claim()
            return super().invoke(ctx)
        except CurationError as error:
            echo(f"curate: {redact_text(' '.join(str(error).split()))}", err=True)
            sys.exit(error.exit_code)
        except BaseException as error:  # of a file, or a library that reads tables; any other one is our fault
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if isinstance(error, OSError) and (words := describe_file_error(error)) is not None:
                echo(f"curate: {redact_text(words)}", err=True)
                sys.exit(1)
            if (words := describe_lance_error(error)) is None:
                raise
            get_logger(__name__).info("a table cannot be read", exc_info=True)
            echo(f"curate: {words}; `curate verify` with its run directory says what is damaged", err=True)
            sys.exit(1)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trust-curation")
def main() -> None:
    """Curate data with a weak teacher and a trust function.

    A weak teacher labels a pool. A trust function says how likely each label is right. Trusted rows train a student.
    """


if __name__ == "__main__":
    main()

"""The command `holdfast`: its subcommands and exit codes.

Exit codes: 0 success; 1 internal error; 2 invalid input or a missing package; 3 the service or its database is
unreachable; 4 no such job; 5 not allowed; 6 not possible in the current state. Commands that follow a job: 100 it
failed, 103 it was cancelled. 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from holdfast_worker.protocol.release import requirement
from typer import main as typer_main
from typer.core import TyperCommand, TyperGroup

import holdfast
from holdfast.cli.usage.examples import examples_of
from holdfast.errors import HoldfastError, NotInstalled

GROUPS: Final = {
    "Jobs": {
        "submit": "jobs.submit",
        "sweep": "fleet.sweeps.sweep",
        "sweeps": "fleet.sweeps.sweeps_app",
        "ps": "jobs.ps",
        "show": "jobs.show",
        "logs": "logs.logs",
        "events": "logs.events",
        "exec": "nodes.execute.execute",
        "shell": "nodes.shell.shell",
        "metrics": "metrics.metrics",
        "ranks": "diagnostics.ranks",
        "why": "billing.why",
        "cancel": "jobs.cancel",
        "pause": "job_control.pause",
        "resume": "job_control.resume",
        "limits": "job_control.limits",
        "queue": "queue.quotas.queue",
        "priority": "queue.quotas.priority",
        "retry": "job_control.retry",
        "label": "usage.bulk_actions.label",
        "clone": "job_control.clone",
        "preempt": "jobs.preempt",
        "rm": "job_control.rm",
    },
    "Planning and cost": {
        "render": "render.render",
        "plan": "planning.plan.plan",
        "advise": "planning.advice.advise",
        "prices": "prices.prices",
        "what-if": "planning.advice.app",
        "simulate": "planning.simulate.simulate",
        "traces": "planning.traces.app",
        "bill": "billing.bill",
        "costs": "billing.costs",
        "preemptions": "preemptions.preemptions",
        "budgets": "budgets.app",
        "quota": "queue.quotas.app",
    },
    "Checkpoints and artifacts": {
        "checkpoints": "checkpoints.checkpoints",
        "outputs": "artifacts.outputs.outputs",
        "manifest": "diagnostics.manifest",
        "bundle": "diagnostics.bundle",
        "diff": "diagnostics.diff",
        "prove": "prove.prove",
        "reproduce": "reproduce.reproduce",
    },
    "People and access": {
        "login": "identity.login",
        "logout": "identity.logout",
        "whoami": "identity.whoami",
        "users": "identity.users_app",
        "projects": "identity.projects_app",
        "members": "identity.members",
        "tokens": "identity.tokens_app",
        "audit": "audit.app",
    },
    "Service": {
        "serve": "serve.serve",
        "up": "serve.up",
        "mcp": "serve.mcp",
        "doctor": "doctor.doctor",
        "demo": "demo.demo",
        "channels": "notifications.app",
        "launches": "job_control.launches_app",
        "wheelhouse": "wheelhouse.wheelhouse",
        "db": "database.app",
    },
}
"""The commands by group, in the order of the help.

Each has its module and function in this package, or the Typer application that holds its subcommands.
"""
COMMANDS: Final = {name: place for group in GROUPS.values() for name, place in group.items()}


class LazyCommands(Mapping[str, Any]):
    """Commands by name.

    Reading one imports its module, as imports take most of the time of a short command.
    """

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = COMMANDS[name].rpartition(".")
        command = getattr(importlib.import_module(f"holdfast.cli.{module}"), attribute)
        holder = typer.Typer(rich_markup_mode=None)
        if isinstance(command, typer.Typer):
            holder.add_typer(command, name=name)
        else:
            holder.command(name)(command)
        return _with_examples(typer_main.get_group(holder).commands[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _with_examples(command: Any, name: str) -> Any:
    """Add the examples of a command, and of each of its subcommands, to the end of the help."""
    lines = "\n".join(f"  {example}" for example in examples_of(name))
    command.epilog = f"\b\nExamples:\n{lines}"  # \b keeps the line breaks.
    for word, inner in getattr(command, "commands", {}).items():
        _with_examples(inner, f"{name} {word}")
    return command


class LazyGroup(TyperGroup):
    """The root command group, which imports only the commands that it needs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands()  # type: ignore[assignment]  # Commands are static.

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of typer
        """List the names of all commands in the order of the help."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature of typer
        """Print the commands by group."""
        width = max(map(len, COMMANDS))
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(limit=200))
                        for name in names
                    ]
                )

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the first word with names only: help texts would import all modules."""
        lazy = self.commands
        self.commands = {name: TyperCommand(name) for name in COMMANDS}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = lazy


app = typer.Typer(
    name="holdfast",
    cls=LazyGroup,
    help="Run training jobs on spot nodes without losing work, and account for every cent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Declare the options before a subcommand."""


def main() -> None:
    """Run the command line; an error prints one sentence and sets the exit code."""
    try:
        app()
    except HoldfastError as error:
        _exit_with(error)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("holdfast"):
            raise  # A missing module of Holdfast is a bug.
        extra = "mcp" if error.name in {"mcp", "mcp_types"} else "service"
        _exit_with(
            NotInstalled(
                f"this command needs {error.name}, which is not part of the client; run: pip install {requirement(extra)}"
            )
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`holdfast ps | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _exit_with(error: HoldfastError) -> None:
    from holdfast.cli import output  # noqa: PLC0415 - tables and models, which a version needs not

    output.error(error)
    sys.exit(error.exit_code)

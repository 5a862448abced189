"""The command `holdfast`: its subcommands, and how it ends.

Exit codes: 0 done; 1 a mistake of ours; 2 bad input, or something is not installed here; 3 the service or its database
cannot be reached; 4 no such job; 5 not allowed; 6 not possible in the present state; while following a job: 100 it
failed, 103 it was cancelled; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from holdfast_worker.protocol.release import requirement

import holdfast
from holdfast.cli import (
    audit,
    billing,
    budgets,
    checkpoints,
    database,
    demo,
    diagnostics,
    doctor,
    identity,
    job_control,
    jobs,
    launches,
    login,
    logs,
    metrics,
    notifications,
    output,
    planning,
    preemptions,
    prices,
    prove,
    render,
    reproduce,
    serve,
    wheelhouse,
)
from holdfast.errors import HoldfastError, NotInstalled

app = typer.Typer(
    name="holdfast",
    help="Keep training jobs in place on spot nodes: submit once, lose no work, know every cent.",
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
    """The options before a subcommand."""


app.command("serve")(serve.serve)
app.command("up")(serve.up)
app.command("doctor")(doctor.doctor)
app.command("submit")(jobs.submit)
app.command("clone")(job_control.clone)
app.command("retry")(job_control.retry)
app.command("ps")(jobs.ps)
app.command("show")(jobs.show)
app.command("logs")(logs.logs)
app.command("ranks")(diagnostics.ranks)
app.command("events")(logs.events)
app.command("metrics")(metrics.metrics)
app.command("checkpoints")(checkpoints.checkpoints)
app.command("cancel")(jobs.cancel)
app.command("rm")(job_control.rm)
app.command("pause")(job_control.pause)
app.command("resume")(job_control.resume)
app.command("limits")(job_control.limits)
app.command("preempt")(jobs.preempt)
app.command("render")(render.render)
app.command("bill")(billing.bill)
app.command("why")(billing.why)
app.command("bundle")(diagnostics.bundle)
app.command("wheelhouse")(wheelhouse.wheelhouse)
app.command("manifest")(diagnostics.manifest)
app.command("diff")(diagnostics.diff)
app.command("prove")(prove.prove)
app.command("reproduce")(reproduce.reproduce)
app.command("costs")(billing.costs)
app.command("preemptions")(preemptions.preemptions)
app.command("prices")(prices.prices)
app.command("advise")(planning.advise)
app.command("demo")(demo.demo)
app.command("login")(login.login)
app.command("logout")(login.logout)
app.command("whoami")(login.whoami)
app.add_typer(planning.app, name="what-if")
app.add_typer(identity.users_app, name="users")
app.add_typer(identity.projects_app, name="projects")
app.add_typer(identity.members, name="members")
app.add_typer(identity.tokens_app, name="tokens")
app.add_typer(audit.app, name="audit")
app.add_typer(budgets.app, name="budgets")
app.add_typer(notifications.app, name="channels")
app.add_typer(launches.app, name="launches")
app.add_typer(database.app, name="db")


def main() -> None:
    """Run the command line; errors become one sentence and an exit code, never a traceback."""
    try:
        app()
    except HoldfastError as error:
        output.error(error)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("holdfast"):
            raise  # Ours, and so a bug.
        lacking = NotInstalled(
            f"this needs {error.name}, which the client alone does not bring; pip install {requirement('service')}"
        )
        output.error(lacking)
        sys.exit(lacking.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`holdfast ps | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)

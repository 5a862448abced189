"""Command line of the fake cloud: `python -m e2e.fake_aws`, with PYTHONPATH=tests.

Without arguments it prints its commands.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from e2e.fake_aws import namespace
from e2e.fake_aws.build import CannotBuild, build, build_environment
from e2e.fake_aws.cgroup import NoCgroups
from e2e.fake_aws.cloud import FakeAws, InUse
from e2e.fake_aws.paths import Paths


def main() -> None:
    """Run the command."""
    words = _parser().parse_args()
    paths = Paths.of_this_machine()
    cloud = FakeAws(paths)
    if words.command == "environment":
        build_environment(paths)
        return
    try:
        if words.command in {"build", "enter"}:
            build(paths)
        if words.command in {"build", "enter", "up"}:
            namespace.up()
    except (CannotBuild, NoCgroups, namespace.HasAWayOut) as reason:
        sys.exit(f"skycloud: {reason}")
    match words.command:
        case "build":
            return
        case "enter":
            _exec(words.argv)
        case "exec":
            _exec(words.argv, cloud.env())
    if not namespace.is_inside():
        _exec([sys.executable, "-m", "e2e.fake_aws", *sys.argv[1:]])
    try:
        _run_inside(cloud, words)
    except (CannotBuild, InUse) as reason:
        sys.exit(f"skycloud: {reason}")


def _run_inside(cloud: FakeAws, words: argparse.Namespace) -> None:
    match words.command:
        case "up":
            cloud.start(admin_policy=words.admin_policy)
        case "down":
            cloud.stop()
            namespace.down()
        case "show":
            found = [*cloud.instances(state=None), *map(json.dumps, cloud.events())]
            print(*found, sep="\n")
        case "preempt":
            print(*cloud.preempt(words.which, words.notice_s), sep="\n")
        case "deny":
            cloud.deny(region=words.region, zone=words.zone, market=words.market)
        case "allow":
            cloud.allow_all()
        case "api":
            _api(cloud, words.what)


def _api(cloud: FakeAws, what: str) -> None:
    match what:
        case "kill":
            cloud.kill_api_server()
        case "start":
            cloud.start_api_server()
        case "freeze":
            cloud.freeze_api_server()
        case "thaw":
            cloud.thaw_api_server()


def _exec(argv: list[str], env: dict[str, str] | None = None) -> None:
    inside = namespace.entering(argv)
    os.execvpe(inside[0], inside, {**os.environ, **(env or {})})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.fake_aws")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:  # noqa: A002 - argparse's name
        return commands.add_parser(name, help=help, description=help)

    command(
        "build", "SkyPilot's environment and the image of the hosts, where they are not there yet"
    )
    command("environment", "SkyPilot's environment alone, where it is not there yet")
    command("up", "a new cloud; ends the one that runs").add_argument(
        "--admin-policy", metavar="URL|CLASS"
    )
    command("down", "end everything; what was built stays")
    command("show", "the instances, and what happened so far")
    enter = command("enter", "run a command in the cloud's network, as make e2e does with pytest")
    run = command("exec", "the same with SkyPilot's environment: exec sky jobs queue")
    for rest in (enter, run):
        rest.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND")
    preempt = command("preempt", "take instances back")
    preempt.add_argument("which", nargs="?", default="", help="an id, or a part of names; all")
    preempt.add_argument("--notice-s", type=float, help="seconds between notice and preemption")
    deny = command("deny", "no capacity from now on where all that is given matches")
    for what in ("region", "zone", "market"):
        deny.add_argument(f"--{what}")
    command("allow", "capacity everywhere again")
    api = command("api", "what happens to the API server and its controllers")
    api.add_argument("what", choices=("kill", "start", "freeze", "thaw"))
    return parser


if __name__ == "__main__":
    assert Path("/proc").exists(), "Linux only"
    main()

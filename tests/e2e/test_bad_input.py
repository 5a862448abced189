"""User errors: a clear message, the right exit code, and no side effect."""

from __future__ import annotations

import socket

from support.live_service import Service


def test_invalid_commands_fail_with_clear_messages(service: Service) -> None:
    (service.folder / "torn.yaml").write_text("run: [")
    (service.folder / "typo.yaml").write_text("run: x\nresorces: {infra: local}")
    (service.folder / "cloud.yaml").write_text("run: x\nresources: {infra: aws}")
    (service.folder / "moon.yaml").write_text("run: x\nresources: {infra: moon}")
    (service.folder / "good.yaml").write_text("run: x\nresources: {infra: local}")
    cases = [
        (("submit", "torn.yaml"), 2, "not YAML: line 1"),
        (("submit", "typo.yaml"), 2, "did you mean 'resources'"),
        (("submit", "cloud.yaml"), 2, "holdfast up connects one"),
        (("submit", "moon.yaml"), 2, "'moon' is an unknown infrastructure"),
        (("submit", "nosuch.yaml"), 2, "No such file"),
        (("submit", "good.yaml", "--env", "NOVALUE"), 2, "NAME=VALUE"),
        (("preempt", "j000000000000", "--notice", "soon"), 2, "write seconds"),
        (("show", "j000000000000"), 4, "there is no job j000000000000"),
        (("logs", "bert"), 4, "no job named bert; holdfast ps lists jobs"),
        (("frobnicate",), 2, "frobnicate"),
    ]

    for arguments, code, message in cases:
        answer = service.cli(*arguments)
        assert answer.returncode == code, (arguments, answer.stderr)
        assert message in answer.stderr, (arguments, answer.stderr)
        assert "Traceback" not in answer.stderr
    assert service.json("ps") == []


def test_tilde_is_the_home_of_the_command_line_user(service: Service) -> None:
    (service.folder / "home.yaml").write_text("run: x\nresources: {infra: local}\nworkdir: ~/gpt")

    answer = service.cli("render", "home.yaml", HOME="/home/eve")

    assert answer.returncode == 0, answer.stderr
    assert "workdir: /home/eve/gpt" in answer.stdout


def test_unknown_token_is_refused(service: Service) -> None:
    answer = service.cli("ps", HOLDFAST_TOKEN="hf_wrong_token")

    assert answer.returncode == 5
    assert "is not accepted" in answer.stderr


def test_missing_service_and_bad_settings_are_reported(idle: Service) -> None:
    unreachable = idle.cli("ps")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        in_use = idle.cli("serve", "--port", port)
    setting = idle.cli("serve", HOLDFAST_LOOK_EVERY_S="often")
    home = idle.cli("serve", "--port", "0", HOLDFAST_HOME="/proc/nowhere")
    database = idle.cli("db", "upgrade", HOLDFAST_DATABASE_URL="mysql://x")

    assert (unreachable.returncode, in_use.returncode, setting.returncode) == (3, 6, 2)
    assert (home.returncode, database.returncode) == (3, 2)
    assert "holdfast serve" in unreachable.stderr
    assert "choose another with --port" in in_use.stderr
    assert "HOLDFAST_LOOK_EVERY_S='often'" in setting.stderr
    assert "set HOLDFAST_HOME" in home.stderr
    assert "use sqlite" in database.stderr


def test_missing_workdir_script_or_unusable_store_fails_clearly(service: Service) -> None:
    (service.folder / "empty").mkdir()
    (service.folder / "empty" / "train.py").write_text(
        "from holdfast_worker import Run\nRun.start()\n"
    )
    store = {"checkpoint": {"store": "file:///proc/nowhere"}}
    absent = service.folder / "absent.yaml"
    absent.write_text("run: 'true'\nworkdir: nosuch\nresources: {infra: local}")
    checked = service.cli("submit", str(absent))
    unchecked = service.cli("submit", "--force", "--no-upload", str(absent))
    missing = service.submit(name="missing", run="holdfast-worker run nosuch.py", workdir="empty")
    refused = service.submit(
        name="refused", run="holdfast-worker run train.py", workdir="empty", holdfast=store
    )

    ends = [service.ended(job) for job in (missing, refused)]

    assert (checked.returncode, "nosuch" in checked.stderr) == (2, True)
    assert unchecked.returncode == 2
    assert "nosuch is not a directory on the service's machine" in unchecked.stderr
    assert [job["state"] for job in ends] == ["failed"] * 2
    assert [job["exit_code"] for job in ends] == [2, 78]
    assert "nosuch.py" in ends[0]["detail"]
    assert "file:///proc/nowhere" in ends[1]["detail"]
    assert [job["attempt"] for job in ends] == [1, 1], "these failures are not retried"

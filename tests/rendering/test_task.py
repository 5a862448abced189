"""A job as a task: text of a user never becomes syntax of YAML or of a shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import BadJobFile
from holdfast.rendering import (
    REDACTED,
    WHEEL_MOUNT,
    WHEEL_PLACEHOLDER,
    RenderedTask,
    dump,
    load,
    render,
    with_launch_values,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.repetitions import repeat_count

HOSTILE_TEXTS = [
    "no", "1e3", "0o17", "~", "null", "=", "<<", "!!python/object:os.system", "---", "...", "- x", "a: b",
    "#", " #x", "trailing ", "\ttab", "\n", "\r\n", " \n \n", "'", '"', "'\"'\"'", "\\", "\\n", "`id`",
    "$(id)", "${HOME}", "$HOME", "!!", "!1", "*", "?", "[a]", "{a,b}", "~/x", ";", "&", "|", ">x", "-n", "--",
    "%s%d", "\x01", "\x1b[31m", "\x7f", "\x85", "\xa0", "\u2028", "\ufeff", "\u202etxt", "e\u0301", "😀", "\U0010ffff",
]  # fmt: skip
ANYTHING = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
TEXT = ANYTHING | st.lists(st.sampled_from(HOSTILE_TEXTS), max_size=4).map("".join)
ENVS = st.dictionaries(st.from_regex(r"X_[A-Z]{1,3}", fullmatch=True), TEXT, max_size=8)


def rendered(**fields: Any) -> RenderedTask:
    """The launched task of a job file that a program wrote with PyYAML."""
    written = yaml.safe_dump(fields)
    return render(parse_job_file(written).spec)


def output_of(task: dict[str, Any]) -> list[str]:
    """The output of a task's program when a launcher runs it, split at NUL characters."""
    argv = ["bash", "-c", task["run"]]
    env = {"PATH": os.environ["PATH"], **task["envs"]}
    done = subprocess.run(argv, env=env, check=True, capture_output=True, timeout=30)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=repeat_count(25, 200))
@given(st.lists(TEXT, min_size=1, max_size=12))
@example(HOSTILE_TEXTS)
def test_command_arguments_reach_the_program_unchanged(arguments: list[str]) -> None:
    launched = load(rendered(run=["printf", r"%s\0", *arguments]).text)

    assert output_of(launched) == arguments


@settings(max_examples=repeat_count(25, 200))
@given(TEXT.filter(bool), ENVS)
@example("no", {f"X_{n}": text for n, text in enumerate(HOSTILE_TEXTS)})
def test_name_and_env_reach_the_program_byte_for_byte(name: str, envs: dict[str, str]) -> None:
    launched = load(rendered(name=name, envs=envs, run="env -0").text)

    got = dict(line.split("=", 1) for line in output_of(launched))

    assert got["HOLDFAST_NAME"] == name
    assert {key: got[key] for key in envs} == envs


@given(
    st.dictionaries(
        st.sampled_from(["setup", "run"]), st.lists(TEXT).map("\n".join).filter(bool), min_size=2
    )
)
def test_scripts_are_launched_unchanged(scripts: dict[str, str]) -> None:
    launched = load(rendered(**scripts, resources={"infra": "local"}).text)

    assert {part: launched[part] for part in scripts} == scripts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_a_task_is_read_back_as_it_was_dumped(task: dict[str, Any]) -> None:
    assert load(dump(task)) == task


@pytest.mark.parametrize(
    ("written", "variable"),
    [("auto", None), ("off", "off"), (False, "off"), ("30s", "30s"), ("20 steps", "20 steps")],
)
def test_cadence_of_memory_reaches_the_worker(written: object, variable: str | None) -> None:
    task = rendered(run="x", holdfast={"checkpoint": {"store": "s3://b", "memory": written}}).task

    assert task["envs"].get("HOLDFAST_MEMORY") == variable


def test_job_file_values_override_the_base_task() -> None:
    task = rendered(
        name="tiny",
        num_nodes=2,
        workdir="/src",
        setup="pip install -e .",
        run="python train.py",
        envs={"LR": "1e3"},
        resources={"infra": "slurm", "accelerators": "A100:8", "use_spot": False},
        holdfast={
            "checkpoint": {
                "store": "s3://bucket/ckpt",
                "every": "15m",
                "keep": 4,
                "on_failure": "continue",
            }
        },
    ).task

    assert task == {
        "name": "tiny",
        "num_nodes": 2,
        "workdir": "/src",
        "resources": {"infra": "slurm", "accelerators": "A100:8", "use_spot": False},
        "envs": {
            "PYTHONUNBUFFERED": "1",
            "HOLDFAST_NAME": "tiny",
            "HOLDFAST_STORE": "s3://bucket/ckpt",
            "HOLDFAST_EVERY": "15m",
            "HOLDFAST_KEEP": "4",
            "HOLDFAST_ON_SAVE_FAILURE": "continue",
            "HOLDFAST_TIDY": "service",
            "LR": "1e3",
        },
        "setup": "pip install -e .",
        "run": "python train.py",
    }


@pytest.mark.parametrize(("written", "env"), [("off", "off"), ("1h 30m", "5400s"), ("auto", None)])
def test_max_stall_reaches_the_worker(written: str, env: str | None) -> None:
    task = rendered(run="x", holdfast={"limits": {"max_stall": written}}).task

    assert task["envs"].get("HOLDFAST_MAX_STALL") == env


def test_parent_job_reaches_the_worker() -> None:
    checkpoint = {"store": "s3://bucket/ckpt", "from": "j1"}

    task = rendered(run="x", holdfast={"checkpoint": checkpoint}).task

    assert task["envs"]["HOLDFAST_FROM"] == "j1"


def test_spot_is_default_and_holdfast_block_is_not_rendered() -> None:
    local = {"infra": "local"}

    task = rendered(run="true", resources=local, holdfast={"tags": {"team": "nlp"}}).task

    assert task["resources"] == {"use_spot": True, **local}
    assert "holdfast" not in task
    assert "workdir" not in task


def test_rendered_script_is_a_readable_block() -> None:
    text = rendered(run="echo one\necho 'two'\n").text

    assert "run: |\n  echo one\n  echo 'two'\n" in text


def test_job_without_store_gets_a_note_about_restarts() -> None:
    without = rendered(run="true").notes
    saving = rendered(run="true", holdfast={"checkpoint": {"store": "s3://bucket"}}).notes

    assert [note for note in without if "restarts at step 0" in note]
    assert saving == ()


def test_git_workdir_is_passed_to_skypilot_and_rejected_locally() -> None:
    repository = {"url": "https://git.example.com/gpt.git", "ref": "v1"}

    task = rendered(run="true", workdir=repository).task
    with pytest.raises(BadJobFile, match="clone the repository"):
        rendered(run="true", workdir=repository, resources={"infra": "local"})

    assert task["workdir"] == repository


def test_all_features_unsupported_locally_are_rejected_together() -> None:
    fields = {"run": "true", "file_mounts": {"/d": "s3://b"}, "volumes": {"/v": "disk"}}

    with pytest.raises(BadJobFile) as refusal:
        rendered(**fields, resources={"infra": "local"})

    assert [flaw.pointer for flaw in refusal.value.issues] == ["#/file_mounts", "#/volumes"]
    assert all("infra local; " in flaw.message for flaw in refusal.value.issues)


@pytest.mark.parametrize("infra", ["local", "aws"])
def test_only_the_name_of_a_secret_is_rendered(infra: str) -> None:
    launched = rendered(run="true", secrets={"KEY": "hush"}, resources={"infra": infra})

    assert launched.task["secrets"] == {"KEY": REDACTED}
    assert "hush" not in launched.text


def test_secrets_are_added_at_launch_and_never_stored() -> None:
    stored = load(rendered(run="true", secrets={"KEY": "hush"}, resources={"infra": "aws"}).text)

    whole = with_launch_values(stored, secrets={"KEY": "hush"}, wheelhouse=Path("/wheels/1"))

    assert stored["file_mounts"] == {WHEEL_MOUNT: WHEEL_PLACEHOLDER}
    assert whole["secrets"] == {"KEY": "hush"}
    assert whole["file_mounts"] == {WHEEL_MOUNT: "/wheels/1"}
    assert stored["secrets"] == {"KEY": REDACTED}


def test_settings_without_local_effect_get_a_note() -> None:
    resources = {"infra": "local", "accelerators": "A100:8", "use_spot": True}

    notes = rendered(run="true", resources=resources).notes

    assert [note for note in notes if note.startswith("resources.")] == [
        "resources.accelerators has no effect on infra local: nodes are processes of this machine"
    ]


@pytest.mark.parametrize(
    ("infra", "engine"),
    [
        (None, Engine.SKYPILOT),
        ("aws/us-east-1", Engine.SKYPILOT),
        ("kubernetes", Engine.SKYPILOT),
        ("local", Engine.LOCAL),
        ("Local", Engine.LOCAL),
        ("slurm/cluster/partition", Engine.SLURM),
        ("localhost", Engine.SKYPILOT),
    ],
)
def test_infra_chooses_the_launcher(infra: str | None, engine: Engine) -> None:
    text = yaml.safe_dump({"run": "true", "resources": {"infra": infra}})

    assert parse_job_file(text).spec.engine is engine


ELASTIC: dict[str, Any] = {"run": "true", "num_nodes": {"min": 2, "max": 8}}


def test_elastic_job_is_launched_on_its_maximum_of_nodes() -> None:
    task = rendered(**ELASTIC, resources={"infra": "local"}).task
    fixed = rendered(run="true", num_nodes={"min": 8, "max": 8}, resources={"infra": "slurm"}).task

    assert (task["num_nodes"], task["envs"]["HOLDFAST_MIN_NODES"]) == (8, "2")
    assert fixed["num_nodes"] == 8
    assert "HOLDFAST_MIN_NODES" not in fixed["envs"]


@pytest.mark.parametrize(
    ("infra", "recovery", "message"),
    [
        (
            "aws",
            "in_process",
            "is a range, and the SkyPilot launcher replaces all nodes after a loss; write the number of nodes, 8, or divide them into holdfast.groups",
        ),
        (
            "slurm",
            "restart",
            (
                "is a range, and with holdfast.recovery: restart all ranks end after a loss; "
                "write in_process or remove recovery, or write the number of nodes, 8"
            ),
        ),
    ],
)
def test_elastic_job_is_refused_where_all_nodes_are_needed(
    infra: str, recovery: str, message: str
) -> None:
    with pytest.raises(BadJobFile) as refusal:
        rendered(**ELASTIC, resources={"infra": infra}, holdfast={"recovery": recovery})

    assert [(one.pointer, one.message) for one in refusal.value.issues] == [
        ("#/num_nodes", message)
    ]


def test_elastic_job_without_recovery_of_ranks_gets_a_note() -> None:
    limits = {"limits": {"max_failures": 1}}
    elastic = rendered(**ELASTIC, resources={"infra": "local"}, holdfast=limits).notes
    fixed = rendered(run="true", resources={"infra": "local"}, holdfast=limits).notes

    assert [note for note in elastic if note not in fixed] == [
        (
            "num_nodes: with holdfast.limits.max_failures: 1 no ranks are replaced, so a lost node ends the attempt; "
            "write a higher max_failures to continue on fewer nodes"
        )
    ]

"""Rendering of a job file as a batch job of Slurm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.domain.jobfile.slurm_options import SlurmOptions
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.errors import BadJobFile, LaunchRefused
from holdfast.launchers.slurm.batch_job import ClusterPaths, submit_options
from holdfast.ports import Launch
from holdfast.rendering import (
    batch_script,
    render,
    sbatch_options,
    standalone_script,
    standalone_script_notes,
)

FROM_HERE = "# ---- From here on all jobs are alike ----\n"
BY_HAND = Path(__file__).parents[2] / "sky_tasks" / "train.sbatch"
FILE: dict[str, Any] = {
    "name": "ddp-saibook",
    "resources": {"infra": "slurm", "accelerators": "A100:4", "cpus": 16},
    "num_nodes": 4,
    "workdir": "/shared/tiny",
    "run": "holdfast-worker run train.py --epochs 50",
    "envs": {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "^lo,docker0"},
    "config": {"slurm": {"sbatch_options": {"time": "02:00:00"}}},
    "holdfast": {"checkpoint": {"store": "file:///shared/checkpoints"}},
}
"""Four nodes of four GPUs: a world size of 16."""

GOLDEN = """\
#!/bin/bash
#SBATCH --job-name=ddp-saibook
#SBATCH --output=logs/%x-%j.out
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

ENVS='export HOLDFAST_EVERY=auto
export HOLDFAST_JOB=ddp-saibook
export HOLDFAST_KEEP=3
export HOLDFAST_NAME=ddp-saibook
export HOLDFAST_ON_SAVE_FAILURE=stop
export HOLDFAST_STORE=file:///shared/checkpoints
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME='"'"'^lo,docker0'"'"'
export PYTHONUNBUFFERED=1'
PROJECT_DIR=/shared/tiny
OFFLINE_ROOT=
WORKER_DIR=
LAUNCH_DIR=$SLURM_SUBMIT_DIR/.holdfast/ddp-saibook
FIRST_ATTEMPT=1
HOLDFAST_JOB=ddp-saibook
SETUP=
RUN='holdfast-worker run train.py --epochs 50'
PROBE=metadata
PROBE_PACKAGES=torch

"""


def parse(**fields: Any) -> tuple[Any, Any]:
    """Spec and task of the file above with other values."""
    spec = parse_job_file(yaml.safe_dump({**FILE, **fields}), Overrides(base_dir="/")).spec
    return spec, render(spec).task


def with_slurm(**fields: Any) -> tuple[Any, Any]:
    return parse(config={"slurm": fields})


def flaws(**fields: Any) -> dict[str, str]:
    with pytest.raises(BadJobFile) as error:
        parse(**fields)
    return {flaw.pointer: flaw.message for flaw in error.value.issues}


def test_four_nodes_of_four_gpus_are_a_script_for_sbatch() -> None:
    rendered = standalone_script(*parse())

    head, _, body = rendered.partition(FROM_HERE)
    assert head == GOLDEN
    assert body == BY_HAND.read_text().partition(FROM_HERE)[2]


def test_elastic_job_keeps_its_other_nodes() -> None:
    spec, task = parse(num_nodes={"min": 2, "max": 4})

    head = standalone_script(spec, task).partition(FROM_HERE)[0]

    assert head.replace("#SBATCH --no-kill\n", "").replace(
        "export HOLDFAST_MIN_NODES=2\n", ""
    ) == GOLDEN.replace("PROBE_PACKAGES=torch\n", "PROBE_PACKAGES=torch\nHOLDFAST_MIN_NODES=2\n")
    assert "#SBATCH --no-kill\n" in head
    assert "export HOLDFAST_MIN_NODES=2\n" in head


def test_both_scripts_are_valid_bash(tmp_path: Path) -> None:
    rendered = tmp_path / "job.sbatch"
    rendered.write_text(standalone_script(*parse(run="echo 'it''s' \"$HOME\"\n", setup="true")))

    for path in (rendered, BY_HAND):
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_user_text_never_becomes_shell_syntax(tmp_path: Path) -> None:
    awkward = """'; touch broken; echo "$(touch broken)" `touch broken` \\"""
    _, task = parse(run=awkward, setup=awkward, envs={"A": awkward})
    head = batch_script(task, ["--comment=a b"], {"HOLDFAST_JOB": awkward}).partition(FROM_HERE)[0]
    (tmp_path / "head.sh").write_text(head + 'printf %s "$RUN$SETUP$HOLDFAST_JOB"\n')

    ran = subprocess.run(
        ["bash", "head.sh"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert ran.stdout == awkward * 3
    assert [path.name for path in tmp_path.iterdir()] == ["head.sh"]
    assert '#SBATCH "--comment=a b"\n' in head


def test_partition_and_options_are_passed_to_sbatch() -> None:
    _, task = parse(
        resources={"infra": "slurm/hpc/gpu", "memory": "64+", "cpus": "8+"},
        config={
            "slurm": {
                "sbatch_options": {
                    "account": "physics",
                    "exclude": "hpc[42-43]",
                    "exclusive": True,
                    "requeue": False,
                    "mem_per_cpu": "2G",
                },
                "notice_s": 300,
            }
        },
    )

    assert sbatch_options(task) == [
        *("--nodes=4", "--ntasks-per-node=1", "--partition=gpu", "--cpus-per-task=8", "--mem=64G"),
        *("--account=physics", "--exclude=hpc[42-43]", "--exclusive", "--mem-per-cpu=2G"),
        *("--open-mode=append", "--no-requeue", "--signal=B:USR1@300"),
    ]


def test_cloud_job_is_rendered_without_a_partition() -> None:
    spec, task = parse(resources={"infra": "aws/us-east-1", "accelerators": "A100:8"})

    head = standalone_script(spec, task).partition(FROM_HERE)[0]

    assert "--gpus-per-node=8" in head
    assert "partition" not in head


def test_notes_list_steps_missing_from_the_script() -> None:
    spec, _ = parse(secrets={"WANDB": "hush"})

    notes = standalone_script_notes(spec)

    assert "mkdir -p logs" in notes[0]
    assert "export WANDB before sbatch" in notes[1]


def test_probe_is_minimal_unless_the_file_configures_more() -> None:
    _, plain = parse(run="make figures")
    _, result = with_slurm(packages=["torch", "transformers"], probe="import")
    _, off = with_slurm(probe=False)

    assert "PROBE_PACKAGES=\n" in batch_script(plain, (), {})
    assert "PROBE=import\nPROBE_PACKAGES='torch transformers'\n" in batch_script(result, (), {})
    assert "PROBE=off\n" in batch_script(off, (), {})


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        (
            {"sbatch_options": {"acc-ount": "x"}},
            "sbatch_options/acc-ount",
            "did you mean 'account'?",
        ),
        ({"sbatch_options": {"output": "x"}}, "sbatch_options/output", "is not allowed in a job"),
        ({"sbatch_options": {"time": 7200}}, "sbatch_options/time", "in quotes"),
        ({"sbatch_options": {"qos": "a\nb"}}, "sbatch_options/qos", "is not an option value"),
        ({"sbatch_options": ["qos"]}, "sbatch_options", "is not a mapping"),
        ({"sbatch": {}}, "sbatch", "did you mean 'sbatch_options'?"),
        ({"notice_s": 5}, "notice_s", "from 30 to 3600"),
        ({"probe": "maybe"}, "probe", "metadata, import or off"),
        ({"packages": "torch"}, "packages", "is not a list"),
    ],
)
def test_invalid_slurm_settings_are_rejected_with_an_explanation(
    fields: dict[str, Any], place: str, message: str
) -> None:
    found = flaws(config={"slurm": fields})

    assert message in found[f"#/config/slurm/{place}"]


def test_features_unsupported_on_slurm_are_rejected() -> None:
    found = flaws(
        file_mounts={"/data": "s3://bucket/data"},
        resources={"infra": "slurm/a/b/c/d", "memory": "much"},
    )

    assert "is not supported on Slurm" in found["#/file_mounts"]
    assert "slurm/cluster/partition" in found["#/resources/infra"]
    assert "not a whole number" in found["#/resources/memory"]


# Several partitions

PARTITIONS: list[dict[str, Any]] = [
    {"infra": "slurm/hpc/Preempt", "use_spot": True},
    {"infra": "slurm/hpc/lent", "use_spot": True},
    {"infra": "slurm/hpc/normal"},
    {"infra": "slurm/hpc/normal/low", "use_spot": True},
]
SEVERAL: dict[str, Any] = {"infra": "slurm", "accelerators": "A100:4", "ordered": PARTITIONS}


def launch_options(capacity: CapacityType, *places: str) -> tuple[list[str], SlurmOptions]:
    """What a launch of the job above asks Slurm for."""
    spec, _ = parse(resources=SEVERAL)
    placement = LaunchPlacement(capacity=capacity, places=places)
    task = render(spec.with_placement(placement)).task
    return sbatch_options(task), SlurmOptions.from_task(task)


def test_one_slurm_job_waits_in_all_partitions_of_a_list() -> None:
    spec, task = parse(resources=SEVERAL)

    assert "--partition=Preempt,lent,normal" in sbatch_options(task)
    assert "--gpus-per-node=4" in sbatch_options(task)
    assert SlurmOptions.from_task(task).is_spot is None
    [note] = [note for note in render(spec).notes if "only a plan" in note]
    assert note.startswith("resources.ordered.3: a Slurm job has one cluster, one QOS and one size")


@pytest.mark.parametrize(
    ("capacity", "places", "options", "is_spot"),
    [
        (
            CapacityType.SPOT,
            ["slurm/hpc/preempt", "slurm/hpc/lent"],
            ["--partition=Preempt,lent"],
            True,
        ),
        (CapacityType.SPOT, ["slurm/hpc/lent"], ["--partition=lent"], True),
        (
            CapacityType.SPOT,
            ["slurm/hpc/normal/low", "slurm/hpc/preempt"],
            ["--partition=normal", "--qos=low"],
            True,
        ),
        (CapacityType.ON_DEMAND, ["slurm/hpc/normal"], ["--partition=normal"], False),
    ],
)
def test_launch_asks_for_partitions_of_its_capacity_type(
    capacity: CapacityType, places: list[str], options: list[str], is_spot: bool
) -> None:
    rendered, asked = launch_options(capacity, *places)

    assert [word for word in rendered if word.startswith(("--partition", "--qos"))] == options
    assert "--gpus-per-node=4" in rendered
    assert (asked.is_spot, asked.cluster) == (is_spot, "hpc")


def test_whether_a_single_partition_is_preemptible_is_unknown() -> None:
    """Rendered tasks have use_spot: true by default."""
    _, task = parse(resources={"infra": "slurm/hpc/normal"})

    assert SlurmOptions.from_task(task).is_spot is None


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        (
            {"ordered": [{"infra": "slurm/hpc/a"}, {"infra": "aws"}]},
            "resources/ordered/1/infra",
            "is aws, and the job runs on Slurm; write slurm/cluster/partition, or remove this entry",
        ),
        (
            {"any_of": [{"infra": "slurm/a/b/c/d"}]},
            "resources/any_of/0/infra",
            "has too many parts; write slurm/cluster/partition, or slurm/cluster/partition/qos",
        ),
        (
            {"any_of": [{"cpus": "some"}]},
            "resources/any_of/0/cpus",
            "'some' is not a whole number; write one such as 16",
        ),
        (
            {"any_of": [{"cpus": 4}, {"cpus": 8}], "memory": "much"},
            "resources/memory",
            "'much' is not a whole number; write one such as 16",
        ),
        (
            {"any_of": [{"cpus": 4}], "ordered": [{"cpus": 8}]},
            "resources/ordered",
            "cannot be combined with any_of; write one of the two",
        ),
    ],
)
def test_wrong_partitions_are_refused(fields: dict[str, Any], place: str, message: str) -> None:
    assert flaws(resources={"infra": "slurm", **fields}) == {f"#/{place}": message}


@pytest.mark.parametrize(
    ("word", "resources"),
    [
        ("partition", SEVERAL),
        ("qos", SEVERAL),
        ("qos", {"infra": "slurm/hpc/normal/low"}),
    ],
)
def test_sbatch_options_do_not_replace_the_places(word: str, resources: dict[str, Any]) -> None:
    config = {"slurm": {"sbatch_options": {word: "other"}}}

    assert flaws(resources=resources, config=config) == {
        f"#/config/slurm/sbatch_options/{word}": f"would replace the {word} of each place under resources; remove it, "
        "or remove that of the places"
    }


def test_option_replaces_the_only_partition_of_a_file() -> None:
    config = {"slurm": {"sbatch_options": {"partition": "other"}}}
    spec, task = parse(resources={"infra": "slurm/hpc/gpu"}, config=config)
    placement = LaunchPlacement(capacity=CapacityType.ON_DEMAND, places=("slurm/hpc/gpu",))

    for rendered in (task, render(spec.with_placement(placement)).task):
        assert "--partition=other" in sbatch_options(rendered)


def test_a_job_for_another_cluster_is_refused() -> None:
    _, task = parse(resources={"infra": "slurm/elsewhere"})
    launch = Launch(key="job-1", job_id="job", first_attempt=1, task=task, max_failures=1)
    place = ClusterPaths(
        root="/shared", worker="", python="", offline="", prices=SlurmPrices(1), cluster="hpc"
    )

    with pytest.raises(LaunchRefused, match="this service launches on hpc; write infra: slurm/hpc"):
        submit_options(launch, place)


INTERRUPTED = """
trap 'sleep 0.5' TERM
record "$1.code" setsid bash -c 'trap "exit 75" TERM; echo $$ > "$1"; while :; do sleep 0.01; done' node "$1" &
recorder=$!
until [[ -s $1 ]]; do sleep 0.01; done
read -r program < "$1"
(sleep 0.2; kill -TERM "$program" "$recorder" $$) &
join "$recorder" "$1.code"
echo $?
"""
"""The program of a node ends while its shell still handles the same notice, or at the moment that the shell receives it."""


def test_program_that_ends_during_a_signal_keeps_its_code(tmp_path: Path) -> None:
    [join] = re.findall(r"^JOIN='(.*?)'$", BY_HAND.read_text(), re.MULTILINE | re.DOTALL)

    done = subprocess.run(
        ["bash", "-c", join + INTERRUPTED, "node", tmp_path / "program"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "75\n", done.stderr


def test_killed_program_has_the_code_of_its_signal(tmp_path: Path) -> None:
    [join] = re.findall(r"^JOIN='(.*?)'$", BY_HAND.read_text(), re.MULTILINE | re.DOTALL)
    script = 'record "$1" sleep 60 & pkill -KILL -P $! sleep; kill -KILL $!; join $! "$1"; echo $?'

    done = subprocess.run(
        ["bash", "-c", f"{join}\n{script}", "node", tmp_path / "code"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "137\n", done.stderr


PROGRAM_WITHOUT_SHELL = """
(trap '' TERM; until [ -e signalled ]; do sleep 0.05; done; sleep 0.5
 echo '{"reason": "preempted"}' > "$HOLDFAST_RUN_DIR/left.json") &
kill -TERM $$
sleep 60
"""
"""A program whose shell is ended by the signal that the rest of the node receives later."""


@pytest.mark.parametrize(
    ("command", "program", "code"),
    [("ps", PROGRAM_WITHOUT_SHELL, 75), ("grep", "exit 9", 9)],
    ids=["ps", "grep"],
)
def test_signal_that_ends_a_command_changes_no_result(
    tmp_path: Path, command: str, program: str, code: int
) -> None:
    """Slurm signals all processes of a node, also those that its shell has just started."""
    fake = tmp_path / "bin" / command
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/bash\n[[ -e signalled || $* = *SETUP* ]] || { touch signalled; kill -TERM $$; }\n"
        f'exec {shutil.which(command)} "$@"\n'
    )
    fake.chmod(0o755)
    scripts = tmp_path / "launch" / "scripts"
    scripts.mkdir(parents=True)
    for name, text in (("ENVS", ""), ("SETUP", ""), ("RUN", program)):
        (scripts / name).write_text(text)
    text = BY_HAND.read_text()
    shell = {
        name: re.findall(rf"^(?:export )?{name}='(.*?)'$", text, re.MULTILINE | re.DOTALL)[0]
        for name in ("IS_TAKEN", "JOIN", "ROOTS", "SETTLE", "NODE")
    }
    settings = {
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
        "LAUNCH_DIR": str(scripts.parent),
        "ATTEMPT_DIR": str(tmp_path / "attempt"),
        "STAGE_DIR": str(tmp_path / "stage"),
        "PROJECT_DIR": str(tmp_path),
        "SETTLE": shell.pop("SETTLE"),
        "FIXED": ":",
        "SLURM_NODEID": "0",
        "SLURM_JOB_ID": "1",
        "GRACE_S": "0",
        "HOME": str(tmp_path),
        **dict.fromkeys(("OFFLINE_ROOT", "WORKER_DIR", "HOLDFAST_MIN_NODES"), ""),
    }

    done = subprocess.run(
        ["bash", "-c", "\n".join(shell.values())],
        cwd=tmp_path,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stderr
    assert (tmp_path / "attempt/node-0/exit").read_text().endswith(f" {code}\n")

"""Where a job runs is one word of its file; what it runs is the same everywhere."""

from __future__ import annotations

import pytest
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.rendering import TorchrunRequest, render, torchrun_commands

FILE = """
name: same
num_nodes: 2
workdir: /srv/same
run: holdfast-worker run train.py --epochs 50
resources: {{infra: {infra}, accelerators: A100:8}}
holdfast: {{checkpoint: {{store: "s3://bucket/prefix"}}}}
"""


@pytest.mark.parametrize("infra", ["slurm", "aws", "gcp", "kubernetes"])
def test_the_launcher_changes_and_the_program_does_not(infra: str) -> None:
    here = render(parse_job_file(FILE.format(infra="local")).spec).task
    there = render(parse_job_file(FILE.format(infra=infra)).spec).task

    assert there["run"] == here["run"] == "holdfast-worker run train.py --epochs 50"
    assert there["workdir"] == here["workdir"]
    assert there["num_nodes"] == here["num_nodes"]
    ours = {name: value for name, value in here["envs"].items() if name != "HOLDFAST_TIDY"}
    assert ours.items() <= there["envs"].items()


def test_by_hand_the_same_script_is_started_with_the_same_words() -> None:
    spec = parse_job_file(FILE.format(infra="local")).spec

    for node in torchrun_commands(spec, render(spec).task, TorchrunRequest(hosts=["a", "b"])):
        assert node.command.rstrip().endswith(" train.py --epochs 50")

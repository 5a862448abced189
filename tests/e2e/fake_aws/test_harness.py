"""The fake cloud lets the real SkyPilot rent, lose, find and release machines."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e.fake_aws import account
from e2e.fake_aws.cloud import BUCKET, FakeAws
from e2e.fake_aws.jobs import ManagedJob
from e2e.fake_aws.paths import CHECKOUT

CHEAP = {"infra": "aws", "instance_type": "m6i.large", "use_spot": True}
# The output of a machine is lost with it, so that it reports notices at once.
LISTEN = """
imds=http://169.254.169.254/latest
echo "without a token: $(curl -s -o /dev/null -w '%{http_code}' $imds/meta-data/instance-id)"
token=$(curl -sf -X PUT $imds/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 600')
ask() { curl -s -w ' %{http_code}' -H "X-aws-ec2-metadata-token: $token" $imds/meta-data/$1; }
echo "I am $(ask instance-id)"
while sleep 0.5; do
  notice=$(ask spot/instance-action)
  case "$notice" in
    *' 404') ;;
    *) echo "$notice" | python -c '
import boto3, os, sys
boto3.client("s3").put_object(Bucket="holdfast", Key="notice", Body=sys.stdin.read().encode())'
       sleep 600;;
  esac
done
"""


def task(name: str, run: str, **more: Any) -> dict[str, Any]:
    """A job on one inexpensive spot machine."""
    return {"name": name, "resources": CHEAP, "run": run, **more}


def test_job_survives_preemptions_with_and_without_notice(aws: FakeAws) -> None:
    job = ManagedJob.launch(aws, task("listener", LISTEN))
    job.until("RUNNING")

    (found,) = aws.preempt("listener", notice_s=10)
    job.until("RUNNING", times=2)
    aws.preempt("listener")
    job.until("RUNNING", times=3)

    result = account.client("s3").get_object(Bucket=BUCKET, Key="notice")["Body"].read().decode()
    notice, _, code = result.strip().rpartition(" ")
    (announced,) = aws.events("notice")
    first, second = aws.events("preempt")
    assert code == "200"
    assert json.loads(notice) == {"action": "terminate", "time": f"{announced['ends_at'][:19]}Z"}
    assert first["id"] == found.id
    assert _seconds(announced, first) > 9.5
    assert job.statuses().count("RECOVERING") == 2
    assert {change.code for change in job.history()} == {None}, "a preemption has no error code"
    assert "without a token: 401" in job.logs()

    job.cancel()

    assert not aws.instances()
    assert aws.instances(second["id"], state="terminated")


def test_without_capacity_in_a_zone_the_job_starts_in_another(aws: FakeAws) -> None:
    aws.deny(zone="us-east-1a")

    job = ManagedJob.launch(aws, task("wanderer", "sleep 600"))
    job.until("RUNNING")

    (instance,) = aws.instances("wanderer")
    assert aws.events("nocapacity")[0]["zone"] == "us-east-1a"
    assert instance.zone != "us-east-1a"


def test_job_survives_a_killed_api_server(aws: FakeAws) -> None:
    job = ManagedJob.launch(aws, task("patient", "sleep 600"))
    job.until("RUNNING")

    aws.kill_api_server()
    aws.preempt("patient")
    aws.start_api_server()

    job.until("RUNNING", times=2)


def test_paused_api_server_times_out_and_recovers(aws: FakeAws) -> None:
    health = ["curl", "--silent", "--max-time", "3", "http://127.0.0.1:46690/api/health"]

    with aws.blackout():
        silent = aws.exec(health, check=False)
    thawed = aws.exec(health)

    assert silent.returncode == 28, "curl's number for a timeout"
    assert json.loads(thawed.stdout)["status"] == "healthy"


def test_two_nodes_train_with_the_wheel_of_this_checkout(aws: FakeAws, tmp_path: Path) -> None:
    training = {
        "num_nodes": 2,
        "workdir": str(CHECKOUT / "examples" / "tiny_gpt"),
        "file_mounts": {"/tmp/wheel": str(_wheel(tmp_path))},
        "setup": 'pip install --quiet "$(echo /tmp/wheel/*.whl)[worker]"',
        "envs": {
            "HOLDFAST_JOB": "tiny",
            "HOLDFAST_STORE": f"s3://{BUCKET}/tiny",
            "HOLDFAST_EVERY": "20 steps",
        },
    }

    job = ManagedJob.launch(
        aws, task("tiny", "holdfast-worker run train.py --steps 60", **training)
    )
    job.until("SUCCEEDED")

    stored = account.client("s3").list_objects_v2(Bucket=BUCKET, Prefix="tiny/")["Contents"]
    last = {Path(item["Key"]).name for item in stored if "/step-60-" in item["Key"]}
    assert {"rank-0.json", "rank-1.json"} <= last, stored
    assert "trained for 60 steps" in job.logs()


def _wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(CHECKOUT)], check=True, capture_output=True)
    return folder


def _seconds(earlier: dict[str, Any], later: dict[str, Any]) -> float:
    return (
        datetime.fromisoformat(later["at"]) - datetime.fromisoformat(earlier["at"])
    ).total_seconds()

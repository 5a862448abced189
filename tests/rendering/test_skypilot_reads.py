"""The real SkyPilot parses every task that Holdfast renders, with the intended meaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.errors import BadJobFile
from holdfast.rendering import REDACTED, WHEEL_MOUNT, dump, load_all, render
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.repetitions import repeat_count
from support.requirements import skip_or_fail
from support.skypilot.real import NotHere, SkyPilot

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sky() -> Iterator[SkyPilot]:
    try:
        sky = SkyPilot()
    except NotHere as reason:
        skip_or_fail(str(reason))
    yield sky
    sky.close()


def rendered(**fields: Any) -> str:
    return render(parse_job_file(yaml.safe_dump({"run": "true", **fields})).spec).text


# One file for each feature; test_skypilot.py checks how they are rendered.
FILES: dict[str, dict[str, Any]] = {
    "the shortest": {},
    "the one of the design": {
        "name": "tiny-gpt",
        "resources": {"infra": "aws", "accelerators": "A100:8", "use_spot": True},
        "num_nodes": 2,
        "workdir": "/srv/tiny",
        "run": "holdfast-worker run train.py --epochs 50",
        "holdfast": {
            "checkpoint": {"store": "s3://bucket/prefix", "every": "auto", "keep": 3},
            "limits": {
                "max_cost_usd": 600,
                "max_hourly_cost_usd": 20,
                "deadline": "48h",
                "max_duration": "72h",
                "max_failures": 3,
            },
            "tags": {"team": "nlp"},
        },
    },
    "spot nodes that resume": {
        "resources": {"infra": "gcp", "accelerators": "A100:4", "use_spot": True},
        "num_nodes": 2,
        "run": "holdfast-worker run train.py --epochs 50",
        "holdfast": {"checkpoint": {"store": "s3://bucket/ckpt"}},
    },
    "an old tutorial": {
        "resources": {"cloud": "aws", "region": "us-east-1", "spot_recovery": "auto"},
        "run": "torchrun --master_addr $SKYPILOT_HEAD_IP train.py",
    },
    "fallback to on demand": {
        "resources": {
            "accelerators": "A100:8",
            "ordered": [
                {"infra": "aws/us-east-1/us-east-1b"},
                {"infra": "aws/us-east-2", "labels": {"second": "choice"}},
                {"infra": "aws", "use_spot": False},
            ],
        }
    },
    "anywhere": {
        "resources": {
            "labels": {"team": "nlp"},
            "any_of": [
                {"infra": "aws", "accelerators": "A100:8"},
                {"infra": "gcp", "accelerators": "A100:4", "labels": {"cloud": "gcp"}},
                {"infra": "kubernetes", "accelerators": "H100:8"},
                {"infra": "*/us-west-2"},
            ],
        }
    },
    "several accelerators": {"resources": {"accelerators": {"A100:8": None, "H100:8": None}}},
    "accelerators in order": {"resources": {"accelerators": ["H100:8", "A100-80GB:8", "a100:8"]}},
    "mounts": {
        "envs": {"BUCKET": "data"},
        "file_mounts": {
            "/data": "s3://bucket/data",
            "/more": {"source": "s3://bucket/$BUCKET", "mode": "MOUNT"},
            "/copy": {"source": "s3://bucket/copy", "mode": "COPY"},
            "/ckpt": {"source": "s3://bucket/ckpt", "mode": "MOUNT_CACHED"},
            "~/.netrc": "/root/.netrc",
        },
    },
    "recovery": {
        "resources": {
            "job_recovery": {"strategy": "failover", "recover_on_exit_codes": [33, 34]},
            "priority": -5,
            "autostop": "2h",
        }
    },
    "a repository": {"workdir": {"url": "https://git.example.com/gpt.git", "ref": "v1"}},
    "secrets": {"secrets": {"KEY": "hush", "TOKEN": "0123"}},
    "sizes": {
        "resources": {
            "cpus": "8+",
            "memory": 32,
            "disk_size": 512,
            "disk_tier": "best",
            "network_tier": "best",
            "ports": [8080, "9000-9010"],
            "image_id": {"us-east-1": "ami-1"},
            "infra": "aws/us-east-1",
        }
    },
}


@pytest.mark.parametrize("name", FILES)
def test_skypilot_parses_rendered_tasks_as_intended(sky: SkyPilot, name: str) -> None:
    fields = FILES[name]
    text = rendered(**fields)

    (found,) = sky.read([text])

    task = yaml.safe_load(text)
    assert "error" not in found, found["error"]
    assert found["envs"] == task["envs"]
    assert (found["run"], found["setup"]) == (task["run"], task["setup"])
    assert found["secrets"] == sorted(fields.get("secrets", {}))
    assert found["ordered"] is (
        "ordered" in fields.get("resources", {})
        or isinstance(fields.get("resources", {}).get("accelerators"), list)
    )
    for one in found["resources"]:
        assert one["job_recovery"] == task["resources"]["job_recovery"]


def test_skypilot_parses_the_task_of_each_group(sky: SkyPilot) -> None:
    groups = [
        {
            "name": "head",
            "num_nodes": 1,
            "resources": {"infra": "aws/us-east-1", "use_spot": False},
        },
        {"name": "workers", "num_nodes": 2, "resources": {"infra": "gcp", "priority": 7}},
    ]
    fields = {"resources": {"accelerators": "A100:8"}, "holdfast": {"groups": groups}}
    tasks = [dump(task) for task in load_all(rendered(**fields))]

    head, workers = sky.read(tasks)

    assert "error" not in head, head["error"]
    assert "error" not in workers, workers["error"]
    assert (head["num_nodes"], workers["num_nodes"]) == (1, 2)
    assert (head["envs"]["HOLDFAST_GROUP"], workers["envs"]["HOLDFAST_FIRST_NODE"]) == ("head", "1")
    assert [one["use_spot"] for found in (head, workers) for one in found["resources"]] == [
        False,
        True,
    ]


PLANNED: dict[str, Any] = {
    "run": "true",
    "num_nodes": 2,
    "resources": {
        "accelerators": "A100:8",
        "ordered": [
            {"infra": "aws/us-east-1/us-east-1b", "labels": {"first": "choice"}},
            {"infra": "gcp/us-central1", "max_hourly_cost": 50, "priority": 3},
            {"infra": "aws/us-east-1/us-east-1b", "use_spot": False},
        ],
    },
    "holdfast": {"checkpoint": {"store": "s3://bucket/ckpt"}},
}


@pytest.mark.parametrize(
    ("capacity", "infras", "strategy"),
    [
        (CapacityType.SPOT, ["gcp/us-central1", "aws/us-east-1/us-east-1b"], "EAGER_NEXT_REGION"),
        (CapacityType.SPOT, ["aws/us-east-1/us-east-1b"], "EAGER_NEXT_REGION"),
        (CapacityType.ON_DEMAND, ["aws/us-east-1/us-east-1b", "gcp/us-central1"], "FAILOVER"),
        (CapacityType.ON_DEMAND, ["gcp/us-central1"], "FAILOVER"),
    ],
)
def test_skypilot_reads_one_capacity_type_in_order(
    sky: SkyPilot, capacity: CapacityType, infras: list[str], strategy: str
) -> None:
    placement = LaunchPlacement(capacity=capacity, places=tuple(infras))
    spec = parse_job_file(yaml.safe_dump(PLANNED)).spec.with_placement(placement)

    (found,) = sky.read([render(spec).text])

    assert "error" not in found, found["error"]
    assert [one["infra"] for one in found["resources"]] == infras
    assert found["ordered"] is (len(infras) > 1)
    for one in found["resources"]:
        is_gcp = one["infra"].startswith("gcp")
        # SkyPilot omits the default.
        assert one.get("use_spot", False) is (capacity is CapacityType.SPOT)
        assert one["job_recovery"]["strategy"] == strategy
        assert one["accelerators"] == {"A100": 8}
        assert one.get("max_hourly_cost") == (50 if is_gcp else None)
        assert one["priority"] == 3
        assert one["labels"].get("first") == (None if is_gcp else "choice")


def test_skypilot_reads_spot_nodes_that_recover(sky: SkyPilot) -> None:
    (found,) = sky.read([rendered(**FILES["spot nodes that resume"])])

    (resources,) = found["resources"]
    assert (found["num_nodes"], resources["use_spot"]) == (2, True)
    assert resources["job_recovery"]["strategy"] == "EAGER_NEXT_REGION"
    assert resources["job_recovery"]["max_restarts_on_errors"] == 2
    assert found["envs"]["HOLDFAST_STORE"] == "s3://bucket/ckpt"
    assert found["run"] == "holdfast-worker run train.py --epochs 50"


@pytest.mark.parametrize("name", ["train", "smoke"])
def test_base_tasks_can_be_launched_by_hand(sky: SkyPilot, name: str) -> None:
    text = (ROOT / f"sky_tasks/{name}.yaml").read_text()

    (found,) = sky.read([text])

    assert "error" not in found, found["error"]
    (resources,) = found["resources"]
    assert resources["use_spot"] is True
    assert resources["autostop"] == {"idle_minutes": 10, "down": True}


def test_labels_of_candidates_stay_with_them(sky: SkyPilot) -> None:
    (found,) = sky.read([rendered(**FILES["anywhere"])])

    labels = {one["infra"]: one["labels"] for one in found["resources"]}

    common = {"holdfast-name": "job", "team": "nlp"}
    assert labels == {
        "aws": common,
        "gcp": {**common, "cloud": "gcp"},
        "kubernetes": common,
        "*/us-west-2": common,
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resources": {"spot_recovery": "auto"}}, "did you mean 'job_recovery'?"),
        ({"resources": {"job_recovery": {"strategy": "auto"}}}, "not a valid"),
        ({"name": "two words"}, "Invalid task name"),
        ({"experimental": {}}, "experimental"),
        ({"envs": {"D": 'a"b'}, "file_mounts": {"/d": "s3://b/${D}"}}, "JSONDecodeError"),
    ],
)
def test_corrected_or_rejected_tasks_fail_in_skypilot(
    sky: SkyPilot, fields: dict[str, Any], message: str
) -> None:
    (found,) = sky.read([yaml.safe_dump({"run": "true", **fields})])

    assert message in found["error"]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
TEXTS = st.lists(st.sampled_from(["no", "1e3", "~", "$HOME", "${X_A}", '"', "\\", "'", "\n", "\u2028", "#", ": ", "- "]), max_size=4).map("".join) | TEXT  # fmt: skip
INFRA = st.sampled_from(["aws", "AWS/us-east-1", "gcp", "azure", "lambda", "runpod", "kubernetes", "k8s/my/context", "*/us-east-1", "aws/*/us-east-1a", "nebius"])  # fmt: skip
ACCELERATORS = st.sampled_from(["A100:8", "A100-80GB:8", "h100:8", {"L4": 1}, "T4", ["A100:8", "H100:8"], {"A100:8": None, "H100:8": None}])  # fmt: skip
KEY = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
NODE: dict[str, st.SearchStrategy[Any]] = {
    "use_spot": st.booleans() | st.none(),
    "cpus": st.sampled_from([4, "4+", 2.5, "8"]),
    "memory": st.sampled_from([16, "32+", "2x"]),
    "disk_size": st.integers(50, 2000) | st.just("1TB"),
    "disk_tier": st.sampled_from(["low", "medium", "high", "best"]),
    "labels": st.dictionaries(KEY, KEY, max_size=2),
    "max_hourly_cost": st.integers(1, 100) | st.floats(0.1, 100),
}
CODE = st.integers(0, 255)
STRATEGY = st.sampled_from(["FAILOVER", "eager_next_region", "auto", "EAGER_NEXT_REGION"])
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "priority": st.integers(-1000, 1000),
    "autostop": st.sampled_from([True, False, 0, 30, "2h", {"idle_minutes": 5}, {"down": True}, None]),
    "job_recovery": STRATEGY
    | st.fixed_dictionaries(
        {},
        optional={
            "strategy": STRATEGY | st.none(),
            "max_restarts_on_errors": st.integers(0, 99),
            "recover_on_exit_codes": CODE | st.lists(CODE, max_size=3),
        },
    ),
}  # fmt: skip
SAME = {"job_recovery": STRATEGY, "autostop": st.just(30)}
ENTRY = st.fixed_dictionaries({"infra": INFRA}, optional=NODE | SAME)
ALONE = {"infra": INFRA, "accelerators": ACCELERATORS, "ports": st.sampled_from([80, "80", [80, "90-91"]])}  # fmt: skip
RESOURCES = (
    st.fixed_dictionaries({}, optional=NODE | SHARED | ALONE)
    | st.fixed_dictionaries(
        {"any_of": st.lists(ENTRY, min_size=1, max_size=3)}, optional=NODE | SHARED
    )
    | st.fixed_dictionaries(
        {"ordered": st.lists(ENTRY, min_size=1, max_size=3)}, optional=NODE | SHARED
    )
)
BUCKET = st.sampled_from(["s3://bucket/a", "s3://bucket/$X_A", "gs://bucket/b", "/srv/data"])
MOUNT = BUCKET | st.fixed_dictionaries(
    {"source": st.just("s3://bucket/a")},
    optional={"mode": st.sampled_from(["MOUNT", "copy", "MOUNT_CACHED"])},
)
SPAN = st.sampled_from(["90s", "48h", "7d"])
LIMITS = st.fixed_dictionaries({}, optional={"max_cost_usd": st.integers(1, 1000), "max_hourly_cost_usd": st.floats(1, 100).map(lambda usd: round(usd, 2)), "deadline": SPAN, "max_duration": SPAN, "max_wait": SPAN, "max_failures": st.integers(1, 100)})  # fmt: skip
BLOCK = st.fixed_dictionaries({}, optional={"limits": LIMITS, "tags": st.dictionaries(TEXT, TEXTS, max_size=2), "checkpoint": st.just({"store": "s3://bucket/c"})})  # fmt: skip
JOB_FILE = st.fixed_dictionaries(
    {"run": TEXTS.filter(bool) | st.lists(TEXTS, min_size=1, max_size=3)},
    optional={
        "name": TEXTS.filter(bool),
        "num_nodes": st.integers(1, 1000),
        "setup": TEXTS,
        "workdir": st.just("/srv/$X_A"),
        "envs": st.dictionaries(st.from_regex(r"X_[AB]{1,2}", fullmatch=True), TEXTS, max_size=3),
        "secrets": st.dictionaries(st.from_regex(r"S_[AB]", fullmatch=True), TEXTS, max_size=2),
        "resources": RESOURCES,
        "file_mounts": st.dictionaries(st.sampled_from(["/a", "/b", "~/c"]), MOUNT, max_size=2),
        "holdfast": BLOCK,
    },
)


@settings(max_examples=repeat_count(25, 150))
@given(st.lists(JOB_FILE, min_size=1, max_size=6))
def test_skypilot_parses_every_task_not_refused(sky: SkyPilot, files: list[dict[str, Any]]) -> None:
    parsed: list[tuple[dict[str, Any], str]] = []
    for fields in files:
        try:
            parsed.append((fields, render(parse_job_file(yaml.safe_dump(fields)).spec).text))
        except BadJobFile:
            continue
    assume(parsed)

    found = sky.read([text for _, text in parsed])

    for (fields, text), answer in zip(parsed, found, strict=True):
        assert "error" not in answer, f"{answer['error']}\n{text}"
        task = yaml.safe_load(text)
        assert answer["envs"] == task["envs"]
        assert {name: answer["envs"][name] for name in fields.get("envs", {})} == fields.get("envs", {})  # fmt: skip
        assert (answer["run"], answer["setup"]) == (task["run"], task["setup"])
        assert answer["secrets"] == sorted(fields.get("secrets", {}))
        assert task.get("secrets", {}) == dict.fromkeys(answer["secrets"], REDACTED)
        assert answer["num_nodes"] == fields.get("num_nodes", 1)
        assert WHEEL_MOUNT in answer["file_mounts"]
        assert {str(one["job_recovery"]) for one in answer["resources"]} == {
            str(task["resources"]["job_recovery"])
        }

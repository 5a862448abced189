"""A job file is parsed as intended, or refused with every error, its position and a remedy."""

from __future__ import annotations

import textwrap

import pytest
import yaml
from holdfast.domain.jobfile.bounded_yaml import MAX_BYTES
from holdfast.domain.jobfile.checkpoint_spec import Checkpoint
from holdfast.domain.jobfile.parser import Overrides, ParsedJobFile, parse_job_file
from holdfast.domain.jobfile.spec import HoldfastBlock, JobSpec, Limits
from holdfast.errors import BadJobFile
from holdfast.rendering import render
from hypothesis import given
from hypothesis import strategies as st


def parse(text: str, **overrides: object) -> ParsedJobFile:
    return parse_job_file(textwrap.dedent(text), Overrides(**overrides))


def flaws(text: str, **overrides: object) -> dict[str, str]:
    """The errors by field."""
    with pytest.raises(BadJobFile) as refusal:
        parse(text, **overrides)
    return {flaw.pointer: flaw.message for flaw in refusal.value.issues}


def test_complete_example_is_parsed() -> None:
    text = """
        name: tiny-gpt
        resources: {infra: aws, accelerators: A100:8, use_spot: true}
        num_nodes: 2
        workdir: .
        run: holdfast-worker run train.py --epochs 50
        holdfast:
          checkpoint: {store: s3://bucket/prefix, every: auto, keep: 3}
          limits: {max_failures: 3}
          tags: {team: nlp}
    """

    job = parse(text, base_dir="/home/ada/gpt")

    assert job.notes == ()
    assert job.spec == JobSpec(
        name="tiny-gpt",
        num_nodes=2,
        workdir="/home/ada/gpt",
        run="holdfast-worker run train.py --epochs 50",
        resources={"infra": "aws", "accelerators": "A100:8", "use_spot": True},
        holdfast=HoldfastBlock(
            checkpoint=Checkpoint(store="s3://bucket/prefix", every="auto", keep=3),
            limits=Limits(max_failures=3),
            tags={"team": "nlp"},
        ),
    )


def test_shortest_job_file_is_one_line() -> None:
    assert parse("run: python train.py").spec == JobSpec(name="job", run="python train.py")


def test_other_skypilot_keys_are_passed_through() -> None:
    spec = parse("{run: x, file_mounts: {/d: s3://b/d}, event_callback: echo, service: }").spec

    assert spec.more == {"file_mounts": {"/d": "s3://b/d"}, "event_callback": "echo"}


# Number of nodes


@pytest.mark.parametrize(
    ("written", "least", "most"),
    [
        ("3", None, 3),
        ("{min: 2, max: 8}", 2, 8),
        ("{min: 1, max: 1000}", 1, 1000),
        ("{max: 4, min: 4}", None, 4),
    ],
)
def test_number_of_nodes_may_be_a_range(written: str, least: int | None, most: int) -> None:
    spec = parse(f"{{run: x, num_nodes: {written}}}").spec

    assert (spec.min_nodes, spec.num_nodes) == (least, most)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{min: 8, max: 2}", "has a min of 8, which is above its max of 2; write a lower min"),
        ("{min: 0, max: 2}", "has 0 as min; write a whole number from 1 to 1000"),
        ("{min: 1, max: 1001}", "has 1001 as max; write a whole number from 1 to 1000"),
        ("{min: true, max: 2}", "has True as min; write a whole number from 1 to 1000"),
        ("{min: 1, max: 2.5}", "has 2.5 as max; write a whole number from 1 to 1000"),
        ("{min: '1', max: 2}", "has '1' as min; write a whole number from 1 to 1000"),
        ("{max: 8}", "has no min; write a mapping such as {min: 2, max: 8}"),
        ("{min: 2, max: }", "has no max; write a mapping such as {min: 2, max: 8}"),
        (
            "{min: 2, max: 8, most: 9}",
            "has the unknown key 'most'; write a mapping such as {min: 2, max: 8}",
        ),
        ("[2, 8]", "[2, 8]: input should be a valid integer"),
    ],
)
def test_wrong_range_of_nodes_is_explained(written: str, message: str) -> None:
    assert flaws(f"{{run: x, num_nodes: {written}}}") == {"#/num_nodes": message}


def test_stored_range_of_nodes_is_read_again() -> None:
    spec = parse("{run: x, num_nodes: {min: 2, max: 8}}").spec
    stored = spec.model_dump(mode="json")

    assert JobSpec.from_stored(stored) == spec
    del stored["min_nodes"]
    assert JobSpec.from_stored(stored).min_nodes is None


# Literal values


@pytest.mark.parametrize(
    "written", ["no", "1e3", "0o17", "017", "1_000", "yes", "12:30:45", "2026-03-01", "1.50", "+1"]
)
def test_names_and_env_values_are_literal(written: str) -> None:
    spec = parse(f"{{run: x, name: {written}, envs: {{LR: {written}}}}}").spec

    assert (spec.name, spec.envs) == (written, {"LR": written})


def test_variable_names_are_literal() -> None:
    assert parse("{run: x, envs: {no: a, on: b, N: c}}").spec.envs == {
        "no": "a",
        "on": "b",
        "N": "c",
    }


def test_env_values_may_use_a_yaml_anchor() -> None:
    text = """
        run: x
        config: {base: &base {LR: 1e3, SEED: 07}}
        envs: {<<: *base, LR: no}
    """

    assert parse(text).spec.envs == {"LR": "no", "SEED": "07"}


@pytest.mark.parametrize("nothing", ["", "~", "null", "{}"])
def test_empty_envs_are_no_envs(nothing: str) -> None:
    assert parse(f"run: x\nenvs: {nothing}").spec.envs == {}


def test_command_line_overrides_the_job_file() -> None:
    spec = parse(
        "{run: x, name: a, envs: {LR: 1, TOKEN: }}", name="b", envs={"TOKEN": "t", "MORE": "m"}
    ).spec

    assert (spec.name, spec.envs) == ("b", {"LR": "1", "TOKEN": "t", "MORE": "m"})


def test_secrets_are_separate_and_literal() -> None:
    job = parse(
        "{run: x, secrets: {PIN: 0123, KEY: , OLD: written}}", secrets={"KEY": "hush", "OLD": "new"}
    )

    assert job.secrets == {"PIN": "0123", "KEY": "hush", "OLD": "new"}
    assert job.spec.secrets == ("KEY", "OLD", "PIN")
    assert "hush" not in job.spec.model_dump_json() + repr(job)


@pytest.mark.parametrize("text", ["secrets: {A: [hush, 1]}", "secrets: [hush]", "secrets: hush", "secrets: {A: &x hush, '1': *x}"])  # fmt: skip
def test_error_about_a_secret_does_not_contain_it(text: str) -> None:
    found = flaws(f"run: x\n{text}")

    assert "hush" not in str(found)


def test_relative_mounts_start_at_the_current_directory() -> None:
    mounts = "{/a: data, /b: {source: ./b, mode: COPY}, /c: s3://b/c, /d: ~/d, /e: $HERE/e}"

    job = parse(
        f"{{run: x, file_mounts: {mounts}}}", base_dir="/home/ada/gpt", home_dir="/home/ada"
    )

    assert job.spec.more["file_mounts"] == {
        "/a": "/home/ada/gpt/data",
        "/b": {"source": "/home/ada/gpt/b", "mode": "COPY"},
        "/c": "s3://b/c",
        "/d": "/home/ada/d",
        "/e": "$HERE/e",
    }


# Errors


@pytest.mark.parametrize(
    ("text", "pointer", "message"),
    [
        ("{run: x, nmae: a}", "#/nmae", "unknown key; did you mean 'name'?"),
        ("{run: x, resources: {acelerators: A100}}", "#/resources/acelerators", "unknown key; did you mean 'accelerators'?"),
        ("{run: x, holdfast: {checkpont: {}}}", "#/holdfast/checkpont", "unknown key; did you mean 'checkpoint'?"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', evry: 5m}}}", "#/holdfast/checkpoint/evry", "unknown key; did you mean 'every'?"),
        ("{run: x, holdfast: {limits: {max_failure: 2}}}", "#/holdfast/limits/max_failure", "unknown key; did you mean 'max_failures'?"),
        ("{run: x, holdfast: {colour: red}}", "#/holdfast/colour", "unknown key; known keys are checkpoint, groups, keep_failed, limits, notify, outputs, plan, priority, project, recovery, tags"),
        ("{run: x, holdfast: {str: 1}}", "#/holdfast/str", "unknown key; known keys are checkpoint, groups, keep_failed, limits, notify, outputs, plan, priority, project, recovery, tags"),
        ("{run: x, list: 1}", "#/list", "unknown key; known keys are api_server_access, config, "),
        ("{run: x, 'a[b': 1}", "#/a[b", "unknown key; known keys are api_server_access, config, "),
        ("{name: a}", "#/run", "is missing; a job needs it"),
        ("{run: []}", "#/run", "[]: "),
        ("{run: ''}", "#/run", "'': string should have at least 1 character"),
        ("{run: [echo, 1]}", "#/run/1", "1: input should be a valid string"),
        ("{run: x, num_nodes: 0}", "#/num_nodes", "0: input should be greater than or equal to 1"),
        ("{run: x, num_nodes: two}", "#/num_nodes", "'two': input should be a valid integer"),
        ("{run: x, resources: []}", "#/resources", "[]: input should be a valid dictionary"),
        ("{run: x, holdfast: {checkpoint: {every: 5m}}}", "#/holdfast/checkpoint/store", "is missing; a job needs it"),
        ("{run: x, holdfast: {checkpoint: {store: 'gs://b/../x'}}}", "#/holdfast/checkpoint/store", "has the part . or .., which keys in buckets cannot have; remove it"),
        ("{run: x, holdfast: {checkpoint: {store: 'gs://b{d/x'}}}", "#/holdfast/checkpoint/store", "'b{d' is not the name of a bucket; write letters"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b[d/x'}}}", "#/holdfast/checkpoint/store", "has a bracket in the name of its bucket"),
        ("{run: x, holdfast: {checkpoint: {store: r2://b}}}", "#/holdfast/checkpoint/store", "'r2://b' is not a store; write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"),
        ("{run: x, holdfast: {checkpoint: {store: 'gs://'}}}", "#/holdfast/checkpoint/store", "'gs://' is not a store; write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"),
        ("{run: x, holdfast: {checkpoint: {store: 'https://a.blob.core.windows.net/b'}}}", "#/holdfast/checkpoint/store", "'https://a.blob.core.windows.net/b' is not a store; write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"),
        ("{run: x, holdfast: {checkpoint: {store: 'az://key@b/x'}}}", "#/holdfast/checkpoint/store", "contains a user or a password, which all viewers of the job could read; write az://bucket/prefix, and set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY as secrets"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://me:pw@b/x'}}}", "#/holdfast/checkpoint/store", "contains a user or a password, which all viewers of the job could read; write s3://bucket/prefix, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY as secrets"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b/x?versionId=1'}}}", "#/holdfast/checkpoint/store", "has a query or a fragment; write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"),
        ("{run: x, holdfast: {checkpoint: {store: 'file:///b#x'}}}", "#/holdfast/checkpoint/store", "has a query or a fragment; write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"),
        ('{run: x, holdfast: {checkpoint: {store: "s3://b/x\\ty"}}}', "#/holdfast/checkpoint/store", "contains a control character, which store names cannot have; remove it"),
        ("{run: x, holdfast: {checkpoint: {store: 'file:///b/%0a'}}}", "#/holdfast/checkpoint/store", "contains a control character, which store names cannot have; remove it"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', every: often}}}", "#/holdfast/checkpoint/every", "'often' is not a cadence: write auto, a duration such as 90s, 15m or 2h, or a count such as 500 steps"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', memory: often}}}", "#/holdfast/checkpoint/memory", "'often' is not a cadence of snapshots in memory: write auto, off, a duration such as 30s or 2m, or a count such as 20 steps"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', memory: true}}}", "#/holdfast/checkpoint/memory", "'on' is not a cadence of snapshots in memory: write auto, off, a duration such as 30s or 2m, or a count such as 20 steps"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', from: ''}}}", "#/holdfast/checkpoint/from", "names no job; write the id of an ended job, or remove it"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', from_job: j1}}}", "#/holdfast/checkpoint/from_job", "unknown key; did you mean 'from'?"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', x: 1}}}", "#/holdfast/checkpoint/x", "unknown key; known keys are every, from, keep, memory, on_failure, store, tidy"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', keep: 1}}}", "#/holdfast/checkpoint/keep", "1 is not between 2 and 1000; with one, a corrupt checkpoint would lose all progress"),
        ("{run: x, holdfast: {recovery: fast}}", "#/holdfast/recovery", "'fast': input should be 'in_process' or 'restart'"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', on_failure: pray}}}", "#/holdfast/checkpoint/on_failure", "'pray': input should be 'stop' or 'continue'"),
        ("{run: x, holdfast: {checkpoint: {store: 's3://b', on_fail: stop}}}", "#/holdfast/checkpoint/on_fail", "unknown key; did you mean 'on_failure'?"),
        ('{run: "a\\0b"}', "#/run", "contains a NUL character, which programs cannot receive; remove it"),
        ('{run: x, resources: {labels: {"\\ud83d": 1}}}', "#", "the job file is not YAML: line 1, column "),
        ('{run: x, name: "\\ud83d"}', "#", "the job file is not YAML: line 1, column "),
        ("{run: x, envs: [A]}", "#/envs", "write envs as a mapping of names to values"),
        ("{run: x, envs: {A: }}", "#/envs/A", "has no value; write one, or submit with --env A=..."),
        ("{run: x, envs: {A: [1]}}", "#/envs/A", "must be a single text; put it in quotes"),
        ("{run: x, envs: {a-b: 1}}", "#/envs/a-b", "is not a valid shell variable name; use letters, digits and _"),
        ("{run: x, envs: {HOLDFAST_TOKEN: 1}}", "#/envs/HOLDFAST_TOKEN", "is set by the launcher; use another name"),
        ("{run: x, envs: {SKYPILOT_NODE_RANK: 1}}", "#/envs/SKYPILOT_NODE_RANK", "is set by the launcher; use another name"),
        ('{run: x, envs: {A: "\\0"}}', "#/envs/A", "contains a NUL character, which programs cannot receive; remove it"),
        ("{run: x, secrets: [A]}", "#/secrets", "write secrets as a mapping of names to values"),
        ("{run: x, secrets: {A: }}", "#/secrets/A", "has no value; write one, or submit with --secret A, which takes it from your environment"),
        ("{run: x, secrets: {A: [hush]}}", "#/secrets/A", "must be a single text; put it in quotes"),
        ("{run: x, secrets: {HOLDFAST_TOKEN: hush}}", "#/secrets/HOLDFAST_TOKEN", "is set by the launcher; use another name"),
        ('{run: x, secrets: {A: "hush\\0"}}', "#/secrets/A", "contains a NUL character, which programs cannot receive; remove it"),
        ('{run: x, secrets: {A: "hush\\ud83d"}}', "#", "the job file is not YAML: line 1, column "),
        ("{run: x, envs: {A: 1}, secrets: {A: hush}}", "#/secrets/A", "is also in envs; keep it in one of the two sections"),
        ("{run: x, file_mounts: {/d/: s3://b/d}}", "#/file_mounts//d/", "a path must not end with a slash; remove it"),
        ("{run: x, file_mounts: {/d: data}}", "#/file_mounts//d", "'data' is relative, but the request has no base_dir; write an absolute path"),
        ("{run: x, file_mounts: {/d: {source: s3://b, mode: LINK}}}", "#/file_mounts//d", "mode 'LINK' is not known; write MOUNT, COPY or MOUNT_CACHED"),
        ("{run: x, file_mounts: {/d: {mode: COPY}}}", "#/file_mounts//d", "has neither source nor name; write source: s3://bucket/prefix"),
        ("{run: x, file_mounts: {/d: {link: s3://b}}}", "#/file_mounts//d", "unknown key 'link'; known keys are config, "),
        ("{run: x, file_mounts: {/d: 7}}", "#/file_mounts//d", "7 is not a mount; write a path, or a bucket such as s3://b"),
        ("{run: x, resources: {any_of: [{acelerators: A100}]}}", "#/resources/any_of/0/acelerators", "unknown key; did you mean 'accelerators'?"),
        ("{run: x, resources: {job_recovery: {stratgy: FAILOVER}}}", "#/resources/job_recovery/stratgy", "unknown key; did you mean 'strategy'?"),
        ("{run: x, resources: {job_recovery: {recover_on_exit_codes: 300}}}", "#/resources/job_recovery/recover_on_exit_codes/0", "300: input should be less than or equal to 255"),
        ("{run: x, resources: {accelerators: 8}}", "#/resources/accelerators", "8 is not an accelerator; write one such as A100:8, or a list"),
        ("{run: x, resources: {labels: {team: 7}}}", "#/resources/labels/team", "7: input should be a valid string"),
        ("{run: x, resources: {priority: 2000}}", "#/resources/priority", "2000: input should be less than or equal to 1000"),
        ("{run: x, resources: {autostop: soon}}", "#/resources/autostop", "'soon' is not an autostop time; write minutes such as 30, or 2h"),
        ("{run: x, resources: {autostop: {idle: 5}}}", "#/resources/autostop", "unknown key 'idle'; known keys are down, "),
        ("{run: x, resources: {use_spot: 'yes'}}", "#/resources/use_spot", "'yes': input should be a valid boolean"),
        ("{run: x, resources: {disk_size: 1.5}}", "#/resources/disk_size", "1.5: input should be a valid"),
        ("{run: x, resources: {ports: [on]}}", "#/resources/ports", "[True] is not a port; write one such as 8080 or 8080-8090, or a list"),
        ("{run: x, resources: {image_id: 7}}", "#/resources/image_id", "7 is not an image; write its id, or a mapping of regions to ids"),
        ("{run: x, workdir: 7}", "#/workdir", "7 is not a folder; write one, or url and ref of a git repository"),
        ("{run: x, workdir: {ref: main}}", "#/workdir", "{'ref': 'main'} is not a folder; write one"),
        ("{run: x, workdir: {url: u, ref: 7}}", "#/workdir", "url and ref of a git repository are texts; put them in quotes"),
        ('{run: x, workdir: "/a\\0"}', "#/workdir", "contains a NUL character, which programs cannot receive; remove it"),
        ("{run: x, workdir: src}", "#/workdir", "'src' is relative, but the request has no base_dir; write an absolute path"),
        ("{run: x, workdir: ~/src}", "#/workdir", "'~/src' is in a home directory, but the request has no home_dir; write an absolute path"),
        ("{run: x, file_mounts: {/d: ~/data}}", "#/file_mounts//d", "'~/data' is in a home directory, but the request has no home_dir; write an absolute path"),
        ("{run: x, file_mounts: {/d: {source: ~eve/data}}}", "#/file_mounts//d", "'~eve/data' is in the home directory of another user; write an absolute path"),
        ("{run: x, resources: {memory: .inf}}", "#/resources/memory", "is a number out of range; write one below 2^63"),
        ("{run: x, resources: {labels: {k: !!binary aGk=}}}", "#/resources/labels/k", "is not plain text or a number; put it in quotes"),
        ("{run: x, 7: y}", "#", "7 is not a key of a job file; put it in quotes or remove it"),
        ("", "#", "a job file is a single mapping such as `run: ...`; found no mapping"),
        ("- run", "#", "a job file is a single mapping such as `run: ...`; found no mapping"),
        ("run: x\n---\nrun: y", "#", "a job file is a single mapping such as `run: ...`; found 2 documents"),
        ("run: [", "#", "the job file is not YAML: line 1, column 7: "),
        ("run: *nobody", "#", "the job file is not YAML: line 1, column 6: found undefined alias"),
        ("run: !!python/name:os.system", "#", "the job file is not YAML: line 1, column 6: could not determine a constructor"),
        ("run: \a", "#", "the job file is not YAML: "),
        ("run: x" * MAX_BYTES, "#", "the job file is larger than 256 KiB; move data into workdir"),
        ("- " * 5000, "#", "the job file is nested too deeply, or repeats too much through aliases; simplify it"),
        ("{run: x, config: &a [*a]}", "#", "the job file is nested too deeply, or repeats too much through aliases; simplify it"),
    ],
)  # fmt: skip
def test_error_is_named_with_its_field_and_remedy(text: str, pointer: str, message: str) -> None:
    found = flaws(text)

    assert list(found) == [pointer]
    assert found[pointer].startswith(message)


def test_repeated_key_is_named_with_both_lines() -> None:
    text = """run: x
holdfast:
  limits: {deadline: 5h}
  tags: {a: b}
  limits:
    max_cost_usd: 5
envs: {A: 1, "A": 2}
"""

    assert flaws(text) == {
        "#/holdfast/limits": "is written twice, in lines 3 and 5; remove one of them",
        "#/envs/A": "is written twice, in line 7; remove one of them",
    }


def test_key_that_is_a_mapping_has_no_name() -> None:
    assert flaws("run: x\n? {a: b}\n: {c: 1, c: 2}\n").keys() == {"#"}


def test_merge_keys_and_aliases_repeat_no_key() -> None:
    text = "run: x\nenvs: {<<: &more {A: a, B: b}, <<: {C: c}, B: d}\nresources: {labels: *more}"

    assert parse(text).spec.envs == {"A": "a", "B": "d", "C": "c"}


def test_all_errors_are_reported_at_once() -> None:
    text = """
        nmae: x
        num_nodes: -1
        workdir: src
        envs: {A: , B: [1], c-d: 1}
        resources: {acelerators: A100}
        holdfast: {checkpoint: {store: here, keep: 1}}
    """

    assert set(flaws(text)) == {
        "#/run",
        "#/nmae",
        "#/num_nodes",
        "#/workdir",
        "#/envs/A",
        "#/envs/B",
        "#/envs/c-d",
        "#/resources/acelerators",
        "#/holdfast/checkpoint/store",
        "#/holdfast/checkpoint/keep",
    }


def test_few_lines_of_aliases_cannot_expand_to_a_terabyte() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]

    found = flaws("\n".join(["run: x", "l0: &l0 [x]", *levels]))

    assert found["#"].startswith("the job file contains more than 2000 keys and values")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["run", "envs", "name", "resources", "holdfast", "tags", "str"])
                | st.text(max_size=3)
                | st.integers(),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_yaml_is_a_job_or_a_list_of_flaws(document: object) -> None:
    text = yaml.safe_dump(document)

    try:
        spec = parse_job_file(text).spec
        texts = [spec.model_dump_json(), render(spec).text.encode().decode()]
    except BadJobFile as refusal:
        texts = [flaw.message for flaw in refusal.issues]

    assert all(texts)


@given(st.text(max_size=200))
def test_any_text_is_a_job_or_a_list_of_flaws(text: str) -> None:
    try:
        texts = [parse_job_file(text).spec.run]
    except BadJobFile as refusal:
        texts = [flaw.message for flaw in refusal.issues]

    assert all(texts)


# Folders


@pytest.mark.parametrize(
    ("workdir", "base_dir", "folder"),
    [
        (".", "/home/ada", "/home/ada"),
        ("../src", "/home/ada", "/home/src"),
        ("/src", "/home/ada", "/src"),
        ("/src", None, "/src"),
        ("~", None, "/home/eve"),
        ("~//src/", "/home/ada", "/home/eve/src"),
        (None, "/home/ada", None),
    ],
)
def test_workdir_is_relative_to_the_caller(
    workdir: str | None, base_dir: str | None, folder: str | None
) -> None:
    text = yaml.safe_dump({"run": "x", "workdir": workdir})
    given = Overrides(base_dir=base_dir, home_dir="/home/eve")

    assert parse_job_file(text, given).spec.workdir == folder

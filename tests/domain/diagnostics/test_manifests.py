"""The job file in a manifest can be submitted again."""

from __future__ import annotations

import yaml
from holdfast.domain.diagnostics.manifests import job_file
from holdfast.domain.jobfile.parser import Overrides, parse_job_file

FILE = """
name: tiny
num_nodes: 2
workdir: /work
setup: pip install x
run: holdfast-worker run train.py
envs: {LEVEL: 007, ON: no}
secrets: {KEY: hush}
file_mounts: {/data: s3://bucket/data}
resources:
  infra: aws/us-east-1
  accelerators: {A100: 4}
  job_recovery: {strategy: FAILOVER}
holdfast:
  checkpoint: {store: s3://bucket/prefix, every: 15m, keep: 5, from: 20260101-abcdef}
  limits: {max_cost_usd: 600, deadline: 48h, max_duration: 72h, max_failures: 3, max_stall: 20m}
  tags: {team: nlp}
"""


def test_job_file_of_a_manifest_parses_to_the_same_spec() -> None:
    spec = parse_job_file(FILE).spec

    text = yaml.safe_dump(job_file(spec))

    assert parse_job_file(text, Overrides(secrets={"KEY": "hush"})).spec == spec
    assert "hush" not in text


def test_job_file_of_an_elastic_job_keeps_its_range() -> None:
    elastic = {"run": "x", "num_nodes": {"min": 2, "max": 8}, "resources": {"infra": "local"}}
    spec = parse_job_file(yaml.safe_dump(elastic)).spec

    written = job_file(spec)

    assert (written["num_nodes"], "min_nodes" in written) == ({"min": 2, "max": 8}, False)
    assert parse_job_file(yaml.safe_dump(written)).spec == spec

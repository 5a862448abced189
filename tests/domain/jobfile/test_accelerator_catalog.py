"""Accelerator counts that no provider sells are refused; unlisted accelerators pass."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.jobfile.accelerator_catalog import check_accelerators, parse_accelerators
from holdfast.domain.jobfile.resource_options import CLOUDS, resource_options
from holdfast.rendering import bundled_accelerators

OFFERS = bundled_accelerators()


def refusals(**resources: Any) -> list[str]:
    return [flaw.message for flaw in check_accelerators(resource_options(resources), OFFERS)[0]]


def test_accelerator_catalog_is_consistent() -> None:
    assert OFFERS.sizes.keys() <= set(CLOUDS)
    for cloud, offered in OFFERS.sizes.items():
        for name, sizes in offered.items():
            assert cloud in OFFERS.sold.get(name, {cloud})
            assert all(type(count) is int and kind for count, kind in sizes.items())
    assert set(OFFERS.aliases.values()) <= OFFERS.names
    assert not set(OFFERS.aliases) & OFFERS.names


def test_partial_machine_is_refused_with_alternatives() -> None:
    (sentence,) = refusals(infra="aws/us-east-1", accelerators="A100:4")

    assert sentence == (
        "AWS does not sell A100:4, but A100:8 (p4d.24xlarge), A100-80GB:8 (p4de.24xlarge); "
        "GCP has A100:4 (a2-highgpu-4g) (as of 2026-11); choose one of these"
    )


@pytest.mark.parametrize(
    ("infra", "accelerator", "message"),
    [
        ("aws", "h100:4", "AWS does not sell H100:4, but H100:1 (p5.4xlarge), H100:8 (p5.48xlarge); GCP has H100:4"),
        ("gcp", "T4:8", "GCP does not sell T4:8, but T4:1 (n1), T4:2 (n1), T4:4 (n1) (as of"),
        ("azure", "L4", "Azure does not sell L4:1, nor any similar one; GCP has L4:1 (g2-standard-4)"),
        ("GCP", {"V100-32GB": 8}, "GCP does not sell V100-32GB:8, but V100:1 (n1)"),
        ("aws", "A100:0.5", "AWS does not sell A100:0.5, but A100:8"),
        ("aws", ["A100:1", "A100:2"], "AWS does not sell A100:1"),
    ],
)  # fmt: skip
def test_unsold_accelerator_is_refused(infra: str, accelerator: Any, message: str) -> None:
    assert refusals(infra=infra, accelerators=accelerator)[0].startswith(message)


@pytest.mark.parametrize(
    ("infra", "accelerator"),
    [
        ("aws", "A100:8"), ("aws", "A100-80GB:8"), ("gcp", "A100:16"), ("gcp", {"L4": 2}),
        (None, "A100:4"), ("*/us-east-1", "A100:4"), ("runpod", "A100:3"), ("kubernetes", "A100:3"),
        ("aws", "T4:2"), ("azure", "A100-80GB:3"), ("lambda", "A100:3"), ("aws", "Trainium2:7"), ("gcp", "tpu-v5p:8"),
        ("aws", "80GB+"), ("aws", "nvidia:40GB:4"), ("aws", "80GB:4"), ("aws", None),
        ("aws", ["A100:4", "A100:8"]), ("aws", {"A100:4": None, "H100:8": None}),
    ],
)  # fmt: skip
def test_sold_and_unlisted_accelerators_pass(infra: str | None, accelerator: Any) -> None:
    assert refusals(infra=infra, accelerators=accelerator) == []


def test_named_instance_type_skips_the_check() -> None:
    assert refusals(infra="aws", accelerators="A100:4", instance_type="p9.new") == []


def test_one_available_candidate_is_enough() -> None:
    found = resource_options(
        {"accelerators": "A100:4", "any_of": [{"infra": "aws"}, {"infra": "gcp"}]}
    )

    flaws, notes = check_accelerators(found, OFFERS)

    assert flaws == ()
    assert [note.partition(", but")[0] for note in notes] == [
        "resources/accelerators: AWS does not sell A100:4"
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("a100-80g", "A100-80GB"), ("A100_80GB", "A100-80GB"), ("A10080GB", "A100-80GB"), ("A100-40GB", "A100"), ("nvidia-h100", "H100"), ("H100-80G", "H100"), ("v100-32g", "V100-32GB")],
)  # fmt: skip
def test_misspelled_accelerator_is_refused_with_a_suggestion(written: str, meant: str) -> None:
    (sentence,) = refusals(accelerators=f"{written}:8")

    assert sentence == f"{written!r} is unknown; did you mean {meant!r}?"


@pytest.mark.parametrize("name", sorted(OFFERS.names))
def test_known_names_are_not_taken_for_misspellings(name: str) -> None:
    for spelling in (name, name.lower(), name.upper()):
        assert OFFERS.correction(spelling) is None
        assert OFFERS.similar_name(spelling) is None


def test_unknown_similar_name_passes_with_a_question() -> None:
    flaws, notes = check_accelerators(resource_options({"accelerators": "H1000:8"}), OFFERS)

    assert flaws == ()
    assert notes == (
        "resources/accelerators: 'H1000' is passed on unchanged; did you mean 'H100'?",
    )


def test_accelerators_are_read_in_every_form() -> None:
    forms = [
        "A100",
        "A100:8",
        {"A100": 8},
        {"A100:8": None, "H100": 1},
        ["A100:8", "H100"],
        "80GB",
        7,
    ]

    assert [list(parse_accelerators(form)) for form in forms] == [
        [("A100", 1)],
        [("A100", 8)],
        [("A100", 8)],
        [("A100", 8), ("H100", 1)],
        [("A100", 8), ("H100", 1)],
        [],
        [],
    ]

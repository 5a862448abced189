"""The real SkyPilot places rendered tasks on other clouds than AWS, and asks each cloud for the intended nodes.

Nothing is launched: SkyPilot's optimizer chooses a place from price lists, and its provisioner writes the node's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.resource_options import CLOUDS_WITHOUT_SPOT, SPOT_OPT_IN_CLOUDS
from holdfast.domain.pricing.quotes import PriceQuery
from holdfast.pricing.skypilot_catalog import SkyPilotCatalog
from holdfast.rendering import dump, load_all, render
from support.requirements import skip_or_fail
from support.skypilot.catalogs import write_catalogs
from support.skypilot.real import NotHere, Optimizer

SPOT_POOL = {"cloud.google.com/gke-spot": "true"}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> SkyPilotCatalog:
    return SkyPilotCatalog([write_catalogs(tmp_path_factory.mktemp("sky"))])


@pytest.fixture(scope="module")
def sky(catalog: SkyPilotCatalog) -> Iterator[Optimizer]:
    try:
        sky = Optimizer(catalog.folders[0].parents[2])
    except NotHere as reason:
        skip_or_fail(str(reason))
    yield sky
    sky.close()


def rendered(resources: Mapping[str, Any], **fields: Any) -> str:
    job = {"name": "tiny", "run": "true", "num_nodes": 2, "resources": dict(resources), **fields}
    return render(parse_job_file(yaml.safe_dump(job)).spec).text


def node(name: str, gpus: int = 4, **labels: str) -> dict[str, Any]:
    """A node of GKE with A100s, as its API lists it."""
    room = {"cpu": "48", "memory": "340Gi", "nvidia.com/gpu": str(gpus), "pods": "110"}
    kind = {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}
    return {
        "metadata": {"name": name, "labels": {**kind, **labels}},
        "spec": {},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest.mark.parametrize(
    ("infra", "gpus", "place"),
    [
        ("gcp", 4, ("us-central1", "us-central1-b", "a2-highgpu-4g")),
        ("gcp/europe-west4", 8, ("europe-west4", "europe-west4-a", "a2-highgpu-8g")),
        ("gcp/*/us-central1-a", 1, ("us-central1", "us-central1-a", "a2-highgpu-1g")),
        ("azure", 8, ("westus2", None, "Standard_ND96asr_v4")),
        ("azure/eastus", 8, ("eastus", None, "Standard_ND96asr_v4")),
    ],
)
@pytest.mark.parametrize("use_spot", [True, False], ids=["spot", "on-demand"])
def test_skypilot_finds_the_cheapest_place(
    sky: Optimizer,
    catalog: SkyPilotCatalog,
    infra: str,
    gpus: int,
    place: tuple[str, str | None, str],
    use_spot: bool,
) -> None:
    task = rendered({"infra": infra, "accelerators": f"A100:{gpus}", "use_spot": use_spot})

    (found,) = sky.place(task)

    assert "error" not in found, found["error"]
    assert (found["nodes"], found["use_spot"]) == (2, use_spot)
    if use_spot or "/" in infra:
        assert (found["region"], found["zone"], found["instance_type"]) == place
    # Holdfast reads the same price in the same file.
    query = PriceQuery(
        cloud=found["cloud"],
        region=found["region"],
        zone=found["zone"],
        instance_type=found["instance_type"],
        accelerator="A100",
        count=gpus,
        is_spot=use_spot,
    )
    [quote] = [
        quote
        for quote in catalog.quotes(query)
        if query.matches_location(quote) and query.matches_node(quote) and query.is_exact(quote)
    ]
    micros = quote.spot_micros_per_hour if use_spot else quote.on_demand_micros_per_hour
    assert micros == pytest.approx(found["price"] * 1e6, abs=1)


def test_gcp_is_asked_for_spot_nodes(sky: Optimizer) -> None:
    spot = {"infra": "gcp", "accelerators": "A100:4", "labels": {"team": "nlp"}}

    on_spot, on_demand = sky.place(rendered(spot), rendered({**spot, "use_spot": False}))

    scheduling = on_spot["node"]["scheduling"]
    assert (scheduling["provisioningModel"], scheduling["preemptible"]) == ("SPOT", True)
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert "provisioningModel" not in on_demand["node"].get("scheduling", {})
    for found in (on_spot, on_demand):
        assert found["node"]["labels"].items() >= {"team": "nlp", "holdfast-name": "tiny"}.items()
        (gpu,) = found["node"]["guestAccelerators"]
        assert gpu["acceleratorType"].endswith("nvidia-tesla-a100")
        assert gpu["acceleratorCount"] == 4


def test_azure_is_asked_for_spot_nodes(sky: Optimizer) -> None:
    spot = {"infra": "azure", "accelerators": "A100:8"}

    on_spot, on_demand = sky.place(rendered(spot), rendered({**spot, "use_spot": False}))

    assert on_spot["node"]["azure_arm_parameters"]["priority"] == "Spot"
    assert "priority" not in on_demand["node"]["azure_arm_parameters"]
    assert on_spot["node"]["tags"]["holdfast-name"] == "tiny"


def test_kubernetes_is_asked_for_spot_nodes(sky: Optimizer) -> None:
    resources = {"infra": "kubernetes", "accelerators": "A100:4", "labels": {"team": "nlp"}}
    nodes = [node("spot", **SPOT_POOL), node("other")]

    on_spot, on_demand = sky.place(
        rendered({**resources, "use_spot": True}), rendered(resources), nodes=nodes
    )

    assert "error" not in on_spot, on_spot["error"]
    assert (on_spot["use_spot"], on_demand["use_spot"]) == (True, False)
    assert on_spot["node"]["spec"]["nodeSelector"] == SPOT_POOL
    [toleration] = [t for t in on_spot["node"]["spec"]["tolerations"] if t["key"] in SPOT_POOL]
    assert toleration["value"] == "true"
    assert not SPOT_POOL.items() & on_demand["node"]["spec"].get("nodeSelector", {}).items()
    for found in (on_spot, on_demand):
        assert found["price"] == 0, "own machines have no price"
        assert found["node"]["metadata"]["labels"]["team"] == "nlp"
        container = found["node"]["spec"]["containers"][0]
        assert container["resources"]["requests"]["nvidia.com/gpu"] == 4


def test_kubernetes_without_spot_nodes_has_no_place_for_them(sky: Optimizer) -> None:
    """What the note to such a job says: it waits for nodes."""
    resources = {"infra": "kubernetes", "accelerators": "A100:4"}

    on_spot, on_demand = sky.place(
        rendered({**resources, "use_spot": True}), rendered(resources), nodes=[node("other")]
    )

    assert "ResourcesUnavailableError" in on_spot["error"]
    assert "error" not in on_demand, on_demand["error"]


def test_the_cheapest_of_several_clouds_is_chosen(sky: Optimizer) -> None:
    resources = {
        "accelerators": "A100:8",
        "any_of": [{"infra": "azure"}, {"infra": "gcp"}, {"infra": "gcp", "use_spot": False}],
    }

    (anywhere,) = sky.place(rendered(resources))
    (in_order,) = sky.place(
        rendered({"accelerators": "A100:8", "ordered": [{"infra": "gcp"}, {"infra": "azure"}]})
    )

    assert (anywhere["cloud"], anywhere["use_spot"]) == ("azure", True)
    assert (in_order["cloud"], in_order["zone"]) == ("gcp", "us-central1-b")


def test_maximum_hourly_cost_excludes_places(sky: Optimizer) -> None:
    # A node with eight A100 costs 10.88 or 13.60 dollars an hour on Azure, and at least 13.52 on GCP.
    on_azure = {
        "accelerators": "A100:8",
        "ordered": [{"infra": "azure/eastus"}, {"infra": "azure"}],
    }
    on_gcp = {"accelerators": "A100:8", "infra": "gcp"}

    limited, impossible, ignored = sky.place(
        rendered(on_azure, holdfast={"limits": {"max_hourly_cost_usd": 24}}),
        rendered(on_azure, holdfast={"limits": {"max_hourly_cost_usd": 20}}),
        rendered(on_gcp, holdfast={"limits": {"max_hourly_cost_usd": 2}}),
    )

    assert limited["region"] == "westus2"
    assert "ResourcesUnavailableError" in impossible["error"]
    assert ignored["price"] > 13, "SkyPilot ignores it on GCP, of which a note informs"


def test_planned_places_are_tried_in_order(sky: Optimizer) -> None:
    infras = ("gcp/us-central1", "azure/westus2", "azure/eastus", "gcp/europe-west4")
    resources = {"accelerators": "A100:8", "any_of": [{"infra": infra} for infra in infras]}
    spec = parse_job_file(yaml.safe_dump({"run": "true", "resources": resources})).spec

    for capacity in CapacityType:
        for places in (infras[:2], infras[2:]):
            placed = spec.with_placement(LaunchPlacement(capacity=capacity, places=places))
            (found,) = sky.place(render(placed).text)

            assert "error" not in found, found["error"]
            assert f"{found['cloud']}/{found['region']}" == places[0]
            assert found["use_spot"] is (capacity is CapacityType.SPOT)


def test_groups_are_placed_on_different_clouds(sky: Optimizer) -> None:
    groups = [
        {"name": "head", "num_nodes": 1, "resources": {"infra": "gcp", "use_spot": False}},
        {"name": "workers", "num_nodes": 3, "resources": {"infra": "azure"}},
    ]
    job = {"run": "true", "resources": {"accelerators": "A100:8"}, "holdfast": {"groups": groups}}
    text = render(parse_job_file(yaml.safe_dump(job)).spec).text

    head, workers = sky.place(*(dump(task) for task in load_all(text)))

    assert (head["cloud"], head["use_spot"], head["nodes"]) == ("gcp", False, 1)
    assert (workers["cloud"], workers["use_spot"], workers["nodes"]) == ("azure", True, 3)


def test_clouds_without_spot_nodes_are_those_of_skypilot(sky: Optimizer) -> None:
    assert sky.clouds_without("SPOT_INSTANCE") == CLOUDS_WITHOUT_SPOT | SPOT_OPT_IN_CLOUDS

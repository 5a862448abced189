"""Has SkyPilot's optimizer place tasks, and reports the nodes that its provisioner would ask a cloud for.

Runs in the environment of the real SkyPilot without a network, with price lists in its home directory (catalogs.py) and a
Kubernetes API that lists nodes. Nothing is launched: node configurations are those of a dry run. Input and output have one
JSON value per line. Input: `{"tasks": [YAML, ...], "nodes": [node of Kubernetes, ...]}`. Output: for each task
`{"error": ...}`, or the place, the price per node hour in dollars and the `node` configuration. An input
`{"unsupported": FEATURE}` is answered with the clouds that lack a feature.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
os.environ["SKYPILOT_DISABLE_LOCAL_API_SERVER"] = "1"
os.environ["SKYPILOT_MINIMIZE_LOGGING"] = "1"

ANSWERS = sys.stdout
sys.stdout = sys.stderr  # Output of SkyPilot must not mix with the protocol.
CLOUDS = ("gcp", "azure", "kubernetes")
CONTEXT = "gke_project_us-central1_cluster"


class KubernetesApi(BaseHTTPRequestHandler):
    """Lists the nodes of a cluster without pods."""

    nodes: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        kind = {"nodes": "NodeList", "pods": "PodList"}.get(path.rpartition("/")[2], "List")
        items = self.nodes if kind == "NodeList" else []
        answer = {"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serve_kubernetes() -> None:
    """Serve the API, and name it in the configuration of Kubernetes clients."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), KubernetesApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "u", "user": {"token": "token"}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "c", "user": "u"}}],
    }
    file = Path.home() / ".kube/config"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config))


def place(text: str) -> dict[str, Any]:
    """Optimize a task, and return the best place with the configuration of a node there."""
    import yaml
    from sky import clouds, dag, optimizer
    from sky import task as task_lib
    from sky.backends import backend_utils, cloud_vm_ray_backend

    task = task_lib.Task.from_yaml_config(yaml.safe_load(text))
    with dag.Dag() as graph:
        graph.add(task)
    optimizer.Optimizer.optimize(graph, quiet=True)
    best = task.best_resources
    region = clouds.Region(best.region)
    if best.zone:
        region.set_zones([clouds.Zone(best.zone)])
    configuration = backend_utils.write_cluster_config(
        best,
        task.num_nodes,
        cloud_vm_ray_backend._get_cluster_config_template(best.cloud),
        "holdfast-test",
        Path(os.environ["HOME"]),
        "wheel",
        region,
        region.zones,
        dryrun=True,
    )
    cluster = yaml.safe_load(Path(configuration["ray"]).read_text())
    (node,) = cluster["available_node_types"].values()
    return {
        "cloud": str(best.cloud).lower(),
        "region": best.region,
        "zone": best.zone,
        "instance_type": best.instance_type,
        "use_spot": best.use_spot,
        "price": best.get_cost(3600),
        "nodes": cluster["max_workers"] + 1,
        "node": node["node_config"],
    }


def clouds_without(feature: str) -> list[str]:
    """Return the clouds that refuse a node that needs a feature."""
    from sky import clouds, exceptions, resources
    from sky.utils import registry

    wanted = {clouds.CloudImplementationFeatures[feature]}
    lacking = list[str]()
    for name, cloud in registry.CLOUD_REGISTRY.items():
        try:
            cloud.check_features_are_supported(resources.Resources(), wanted)
        except exceptions.NotSupportedError:
            lacking.append(name)
    return sorted(lacking)


def main() -> None:
    """Answer requests until the input ends."""
    serve_kubernetes()
    import sky.exceptions
    from sky import check
    from sky.utils import annotations, registry

    # There are no credentials to check.
    enabled = [registry.CLOUD_REGISTRY.from_str(name) for name in CLOUDS]
    check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: enabled
    wrong = (sky.exceptions.ResourcesUnavailableError, ValueError)
    for line in sys.stdin:
        request = json.loads(line)
        if feature := request.get("unsupported"):
            print(json.dumps(clouds_without(feature)), file=ANSWERS, flush=True)
            continue
        KubernetesApi.nodes = request["nodes"]
        answers: list[dict[str, Any]] = []
        for text in request["tasks"]:
            annotations.clear_request_level_cache()
            try:
                answers.append(place(text))
            except wrong as error:
                answers.append({"error": f"{type(error).__name__}: {error}"})
        print(json.dumps(answers), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()

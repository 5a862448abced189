"""Runs the admission policy in the environment of the real SkyPilot, as its server does.

Runs without a network. Input and output have one JSON value per line. First output: the port of a web server
that stands in for Holdfast. Then input: a request, `{"name", "task", "at_client_side"}`; output: `{"asked":
BODY}` for each request of the policy to that server, whose response is the next line of input, `{"status",
"body"}`; finally `{"passed": TASK}` or `{"refused": WHY}`.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from typing import Any

sys.path.append(sys.argv[1])  # The directory of the policy; SkyPilot's own packages stay unchanged.
os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
os.environ["SKYPILOT_DISABLE_LOCAL_API_SERVER"] = "1"
os.environ["IS_SKYPILOT_SERVER"] = "true"
os.environ["NO_PROXY"] = "*"

ANSWERS = sys.stdout
sys.stdout = sys.stderr  # Output of SkyPilot must not mix with the protocol.


def send(value: Any) -> None:
    print(json.dumps(value), file=ANSWERS, flush=True)


class Holdfast(http.server.BaseHTTPRequestHandler):
    """Passes each request on to the test."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        send({"asked": raw.decode(), "path": self.path})
        parsed = json.loads(sys.stdin.readline())
        data = parsed["body"].encode()
        self.send_response(parsed["status"])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def apply(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the policy for one request and return the result."""
    from sky import exceptions
    from sky import task as task_lib
    from sky.server.requests.request_names import AdminPolicyRequestName
    from sky.utils import admin_policy_utils

    task = task_lib.Task.from_yaml_config(asked["task"])
    name = AdminPolicyRequestName(asked["name"])
    try:
        dag, _ = admin_policy_utils.apply(task, name, at_client_side=asked["at_client_side"])
    except exceptions.UserRequestRejectedByPolicy as no:
        return {"refused": str(no)}
    return {"passed": dag.tasks[0].to_yaml_config()}


def main() -> None:
    """Answer requests until the input ends."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Holdfast)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    send(server.server_port)
    while line := sys.stdin.readline():
        send(apply(json.loads(line)))


if __name__ == "__main__":
    main()

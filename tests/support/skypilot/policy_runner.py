"""Runs in the environment of the real SkyPilot, without a network: asks its admission policy as SkyPilot's server does.

In and out: one JSON value per line. First out: the port of a web server, which stands for Holdfast. Then in: a request,
`{"name", "task", "at_client_side"}`; out: `{"asked": BODY}` each time the policy asks that server, to which the next
line in is the answer, `{"status", "body"}`; and last `{"passed": TASK}` or `{"refused": WHY}`.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from typing import Any

sys.path.append(
    sys.argv[1]
)  # Where the policy is; SkyPilot's own folder of packages is left alone.
os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
os.environ["SKYPILOT_DISABLE_LOCAL_API_SERVER"] = "1"
os.environ["IS_SKYPILOT_SERVER"] = "true"
os.environ["NO_PROXY"] = "*"

ANSWERS = sys.stdout
sys.stdout = sys.stderr  # Whatever SkyPilot prints, answers stay answers.


def say(value: Any) -> None:
    print(json.dumps(value), file=ANSWERS, flush=True)


class Holdfast(http.server.BaseHTTPRequestHandler):
    """Hands each question on."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        say({"asked": raw.decode(), "path": self.path})
        parsed = json.loads(sys.stdin.readline())
        data = parsed["body"].encode()
        self.send_response(parsed["status"])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def apply(asked: dict[str, Any]) -> dict[str, Any]:
    """What comes of one request."""
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
    """Answer until there is nothing more to read."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Holdfast)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(server.server_port)
    while line := sys.stdin.readline():
        say(apply(json.loads(line)))


if __name__ == "__main__":
    main()

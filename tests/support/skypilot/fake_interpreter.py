"""A fake Python interpreter with SkyPilot.

It imitates the API server as far as the service uses it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import yaml

_SCRIPT = """#!{python}
import http.server, json, os, pathlib, subprocess, sys, urllib.request

stage = pathlib.Path({stage!r})
plays = json.loads((stage / "plays.json").read_text())
if sys.argv[1] == "-c":  # Which version is installed, and where are its packages?
    sys.exit("no such package") if plays["version"] is None else print(plays["version"])
    sys.exit(print(plays["packages"]))
assert sys.argv[1:3] == ["-m", "sky.server.server"], sys.argv
(stage / "environment.json").write_text(json.dumps(dict(os.environ)))
print("the understudy begins", flush=True)
if plays["crashes"]:
    sys.exit("no room on the stage")
port = int(sys.argv[4].removeprefix("--port="))
assert sys.argv[3] == "--host=127.0.0.1"
if plays["leaves_worker"]:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
configured = pathlib.Path(os.environ["HOME"], ".sky/config.yaml").read_text()


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/api/health":
            self.answer({{"status": "healthy", "version": plays["version"]}})
        elif self.path == "/enabled_clouds":
            self.answer(None, {{"X-Skypilot-Request-ID": "r1"}})
        else:
            self.answer({{"return_value": json.dumps(["AWS"])}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/validate":
            policy = configured.split("admin_policy: ")[1].split()[0]
            if policy == "holdfast_gate.Gate":
                assert pathlib.Path(plays["packages"], "holdfast_gate.py").exists()
                if "hfl_probe-0_" not in body["dag"]:
                    return self.answer(None)
                policy = pathlib.Path(os.environ["HOME"], ".sky/holdfast-gate").read_text().strip()
            petition = {{"request_name": "validate", "task": body["dag"], "skypilot_config": "{{}}"}}
            asked = urllib.request.Request(
                policy, json.dumps(json.dumps(petition)).encode(), {{"Content-Type": "application/json"}}
            )
            urllib.request.urlopen(asked, timeout=60).read()
        self.answer(None)

    def answer(self, value, headers={{}}):
        data = json.dumps(value).encode()
        self.send_response(200)
        for name, text in {{**headers, "Content-Length": str(len(data))}}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Api).serve_forever()
"""


class FakeInterpreter:
    """A directory with the fake interpreter, whose behavior may change between two starts."""

    def __init__(self, stage: Path) -> None:
        stage.mkdir(parents=True, exist_ok=True)
        self._stage = stage
        self.packages = stage / "packages"
        self.python = stage / "python"
        self.python.write_text(_SCRIPT.format(python=sys.executable, stage=str(stage)))
        self.python.chmod(0o755)
        self.play()

    def play(
        self,
        *,
        version: str | None = "0.14.1",
        crashes: bool = False,
        leaves_worker: bool = False,
        packages: Path | None = None,
    ) -> None:
        """Set the behavior of the next start. A version of None: SkyPilot is not installed."""
        plays = {"version": version, "crashes": crashes, "leaves_worker": leaves_worker}
        plays["packages"] = str(packages or self.packages)
        (self._stage / "plays.json").write_text(json.dumps(plays))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the newest server."""
        given: dict[str, str] = json.loads((self._stage / "environment.json").read_text())
        return given


def configuration(home: Path) -> dict[str, Any]:
    """Return the configuration that SkyPilot would read with this HOME."""
    text: dict[str, Any] = yaml.safe_load((home / ".sky/config.yaml").read_text())
    return text


def end_all(home: Path) -> None:
    """Kill all processes with this HOME that a test may have left behind."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(home):
                process.kill()
        except psutil.Error:
            continue

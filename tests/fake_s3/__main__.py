"""The fake S3 as a program: prints its port and serves until its stdin is closed.

python -m fake_s3 --port 0 [--md5] [--null] [--unconditional] [--page-keys N] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import replace

from fake_s3.server import Server
from fake_s3.state import ServerState, Settings


def main() -> None:
    """Serve until stdin is closed."""
    parser = argparse.ArgumentParser(prog="python -m fake_s3", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 for any that is free")
    parser.add_argument("--settings", type=json.loads, default={}, help="members of Settings")
    parser.add_argument("--md5", action="store_true", help="ETags are MD5")
    parser.add_argument("--null", action="store_true", help="throw bodies away")
    parser.add_argument("--unconditional", action="store_true", help="ignore conditions")
    parser.add_argument("--page-keys", type=int, help="how many keys a list shows at once")
    parser.add_argument("--seed", type=int, help="of faults that have a chance")
    parser.add_argument("--with-parent", action="store_true", help="end when stdin does")
    args = parser.parse_args()
    settings = Settings(**args.settings)
    flags = {"md5": args.md5, "null": args.null, "page_keys": args.page_keys, "seed": args.seed}
    settings = replace(settings, **{k: v for k, v in flags.items() if v})
    if args.unconditional:
        settings.conditional = False

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    server = Server(ServerState(settings), args.port)
    server.start()
    print(server.port, flush=True)
    if args.with_parent:
        threading.Thread(target=_wait_for_end_of_stdin, args=(over,), daemon=True).start()
    over.wait()
    server.close()


def _wait_for_end_of_stdin(over: threading.Event) -> None:
    os.read(sys.stdin.fileno(), 1)
    over.set()


if __name__ == "__main__":
    main()

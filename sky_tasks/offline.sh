#!/usr/bin/env bash
# Installs Holdfast's worker, and what was asked for beside it, from the wheels beside this script. No package index is asked.
#
#   bash install.sh             into the Python of this shell
#   bash install.sh /opt/env    into a new environment in that folder
set -eu

OLDEST="3.11"  # Of Python: `requires-python` of the wheel.

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
fail() { echo "holdfast: nothing was installed: $*" >&2; exit 1; }

(cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail "files are others than were packed; copy the tar again"
python="$(command -v python3 || command -v python)" || fail "there is no python on PATH"
"$python" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$OLDEST'.split('.'))))" \
  || fail "$python is $("$python" --version), and $OLDEST is needed"
if [ "$#" -gt 0 ]; then
  "$python" -m venv "$1"
  python="$1/bin/python"
fi
# Each version is in the list: nothing is resolved, and what is missing is said.
"$python" -m pip install --disable-pip-version-check --quiet --no-index --no-deps --find-links "$here/wheels" -r "$here/requirements.txt" \
  || fail "see the lines above; the wheels may be for another Python or another kind of machine (--python, --platform)"
echo "installed $(grep -c . "$here/requirements.txt") packages into $("$python" -c 'import sys; print(sys.prefix)')"

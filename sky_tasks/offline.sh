#!/usr/bin/env bash
# Installs Holdfast's worker and the requested packages from the wheels beside this script, without a package index.
#
#   bash install.sh             into the Python of this shell
#   bash install.sh /opt/env    into a new environment in that folder
set -eu

OLDEST="3.11"  # Oldest Python: `requires-python` of the wheel.

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
fail() { echo "holdfast: nothing was installed: $*" >&2; exit 1; }

(cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail "files differ from the packed ones; copy the tar again"
python="$(command -v python3 || command -v python)" || fail "no python on PATH"
"$python" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$OLDEST'.split('.'))))" \
  || fail "$python is $("$python" --version), but $OLDEST is needed"
if [ "$#" -gt 0 ]; then
  "$python" -m venv "$1"
  python="$1/bin/python"
fi
# The list has every version, so pip resolves nothing and reports missing files.
"$python" -m pip install --disable-pip-version-check --quiet --no-index --no-deps --find-links "$here/wheels" -r "$here/requirements.txt" \
  || fail "see the lines above; the wheels may be for another Python or another kind of machine (--python, --platform)"
echo "installed $(grep -c . "$here/requirements.txt") packages into $("$python" -c 'import sys; print(sys.prefix)')"

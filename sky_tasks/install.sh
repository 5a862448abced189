#!/usr/bin/env bash
# Installs the worker into the Python of this shell. The script is beside the wheel that the service has packed of
# itself, so that worker and service have the same version without publishing a package.
#
#   bash ~/.holdfast-wheel/install.sh worker    with all dependencies, including torch; fails if the installation fails
#   bash ~/.holdfast-wheel/install.sh bare      without dependencies, for programs that may not need the worker: always
#                                               succeeds, and changes nothing else in their Python
set -u

OLDEST="3.11"  # Oldest Python: `requires-python` of the wheel.
NEWER="3.12"   # Python that replaces an older one of the node.
SKY_ENV="$HOME/sky-user-env"  # SkyPilot runs `setup` and `run` here unless conda is active.

kind="${1:-worker}"
fail() {
  if [ "$kind" = bare ]; then
    echo "holdfast: continuing without the worker, which the job file does not require: $*" >&2
    exit 0
  fi
  echo "holdfast: the worker could not be installed: $*" >&2
  exit 1
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
wheel="$(find "$here" -maxdepth 1 -name 'holdfast_train-*.whl' | sort | tail -n 1)"
[ -n "$wheel" ] || fail "no wheel in $here; launch the job through its service, or copy the wheel there"
uv="$(command -v uv || echo "$HOME/.local/bin/uv")"

python="$(command -v python || command -v python3)" || fail "no python on PATH; choose an image that has one"
is_new() { "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$OLDEST'.split('.'))))"; }
if ! is_new "$python"; then
  was="$("$python" --version 2>&1)"
  [ "$kind" = bare ] && fail "$python is $was, but $OLDEST is needed"
  # SkyPilot's own environment can be created again. Unlike the old one, it does not see the packages of the image.
  case "$python" in
    "$SKY_ENV"/*) ;;
    *) fail "$python is $was, but $OLDEST is needed; activate a newer one in setup, then run: bash $here/install.sh" ;;
  esac
  "$uv" venv --quiet --seed --clear --python "$NEWER" "$SKY_ENV" \
    || fail "$was is older than $OLDEST, and uv could not install $NEWER; choose an image with a newer Python"
  echo "holdfast: $was is older than $OLDEST; $SKY_ENV now has Python $NEWER, without the packages of the image" >&2
fi

# The same wheel may already be installed by an earlier attempt on the same machine, or in the image.
stamp="$("$python" -c 'import sys; print(sys.prefix)')/.holdfast-wheel"
want="$kind $(sha256sum < "$wheel" | cut -d ' ' -f 1)"
[ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && exit 0

what="holdfast-train[worker] @ file://$wheel"
flags=()
[ "$kind" = bare ] && { what="holdfast-train @ file://$wheel"; flags=(--no-deps); }
if "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel" \
    && "$python" -m pip install --quiet --disable-pip-version-check "${flags[@]}" "$what"
elif [ -x "$uv" ]; then
  "$uv" pip install --quiet --python "$python" --reinstall-package holdfast-train "${flags[@]}" "$what"
else
  fail "$python has neither pip nor uv; install one in the image"
fi || fail "see the lines above; the node must reach a package index, or the image must contain all packages"
# If the prefix is not writable, as in a conda owned by root, pip installed into ~/.local, and does so each time.
{ echo "$want" > "$stamp"; } 2>/dev/null || true

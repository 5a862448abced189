#!/usr/bin/env bash
# Puts the worker of the service that launched a job into the Python of this shell. It lies beside the wheel that the
# service packed of itself, so that both always have the same version and nothing has to be published.
#
#   bash ~/.holdfast-wheel/install.sh worker    with all that the worker needs, torch among it; fails where that fails
#   bash ~/.holdfast-wheel/install.sh bare      the worker alone, for programs that may not need it: never fails, and
#                                               changes nothing else about the Python that they were written for
set -u

OLDEST="3.11"  # Of Python: `requires-python` of the wheel.
NEWER="3.12"   # What is fetched where the node's own is older.
SKY_ENV="$HOME/sky-user-env"  # Where SkyPilot runs `setup` and `run`, unless conda is active.

kind="${1:-worker}"
fail() {
  if [ "$kind" = bare ]; then
    echo "holdfast: goes on without the worker, for which the job file does not ask: $*" >&2
    exit 0
  fi
  echo "holdfast: the worker could not be installed: $*" >&2
  exit 1
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
wheel="$(find "$here" -maxdepth 1 -name 'holdfast_train-*.whl' | sort | tail -n 1)"
[ -n "$wheel" ] || fail "no wheel lies in $here; launch the job through its service, or copy the wheel there"
uv="$(command -v uv || echo "$HOME/.local/bin/uv")"

python="$(command -v python || command -v python3)" || fail "there is no python on PATH; choose an image that has one"
is_new() { "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$OLDEST'.split('.'))))"; }
if ! is_new "$python"; then
  was="$("$python" --version 2>&1)"
  [ "$kind" = bare ] && fail "$python is $was, and $OLDEST is needed"
  # SkyPilot's own environment can be made anew. The old one sees the packages of the image, the new one does not.
  case "$python" in
    "$SKY_ENV"/*) ;;
    *) fail "$python is $was, and $OLDEST is needed; activate a newer one in setup, then run: bash $here/install.sh" ;;
  esac
  "$uv" venv --quiet --seed --clear --python "$NEWER" "$SKY_ENV" \
    || fail "$was is older than $OLDEST, and uv could not fetch $NEWER; choose an image with a newer Python"
  echo "holdfast: $was is older than $OLDEST; $SKY_ENV now has Python $NEWER, without the packages of the image" >&2
fi

# The very same wheel may be there already: from an attempt before on a machine that was kept, or from the image.
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
fi || fail "see the lines above; a package index has to be reachable from the node, or the image has to have it all"
# Where it cannot be written, as in a conda that belongs to root, the worker was put into ~/.local, and is so each time.
{ echo "$want" > "$stamp"; } 2>/dev/null || true

#!/usr/bin/env bash
# Makes the virtual environment .venv of this repository and installs the package into it, editable:
#
#   recipes/setup.sh EXTRA...        extras of pyproject.toml: weights formats eval dev
#
# Takes seconds when all is there already; goes on after an interruption.
set -euo pipefail
repo=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$repo/.venv stamps=$repo/.venv/audiovae

# find_python: print a Python that is new enough and can make environments.
find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup.sh: found $(python3 --version 2>&1 || echo 'no python3'), wanted Python 3.11 or newer with venv." >&2
  echo "Debian, Ubuntu: sudo apt install python3 python3-venv; elsewhere: https://www.python.org" >&2
  exit 2
}

# An environment knows its own path; one that was moved or half made is made anew.
if [ "$(cat "$stamps/path" 2>/dev/null)" != "$repo" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  echo "Making $venv with $("$python" --version)" >&2
  "$python" -m venv --clear "$venv"
  mkdir -p "$stamps"
  echo "$repo" >"$stamps/path"
fi

wanted=$(sha256sum <"$repo/pyproject.toml")
missing=no
for extra in "$@"; do
  if [ "$(cat "$stamps/$extra" 2>/dev/null)" != "$wanted" ]; then missing=yes; fi
done
if [ "$missing" = yes ]; then
  echo "Installing audiovae and what it needs into $venv (PyTorch is large: minutes the first time)" >&2
  extras=$(IFS=, && echo "$*")
  (cd -- "$repo" && "$venv/bin/python" -m pip install --disable-pip-version-check --editable ".[$extras]") >&2
  for extra in "$@"; do echo "$wanted" >"$stamps/$extra"; done
fi

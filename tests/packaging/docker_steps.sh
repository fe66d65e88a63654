#!/usr/bin/env bash
# Run the steps of the Dockerfile without Docker, in a new directory with new environments: docker_steps.sh [EXTRAS]
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
extras="${1:-demo}"
python="${PYTHON:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
torch="$(sed -n 's/^ARG TORCH=//p' "$root/Dockerfile")"

# FROM ... AS build; COPY: what .dockerignore lets through.
mkdir "$work/src" "$work/empty"
(cd "$root" && tar cf - --exclude-vcs --exclude __pycache__ $(sed -n 's/^!//p' .dockerignore)) | tar xf - -C "$work/src"
"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet build
(cd "$work/src" && "$work/build/bin/python" -m build --outdir "$work/dist" > "$work/build.log")

# The image itself.
"$python" -m venv "$work/image"
"$work/image/bin/python" -m pip install --quiet "torch==$torch" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
"$work/image/bin/python" -m pip install --quiet "$(ls "$work"/dist/*.whl)[$extras]"
cd "$work/empty"
"$work/image/bin/tympan" --version
"$work/image/bin/tympan" check_install
du -sh "$work/image"

#!/usr/bin/env bash
# AISHELL from archive to CER. `./run.sh --help` lists the options, `./run.sh --check` looks before it works.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe aishell "$@"

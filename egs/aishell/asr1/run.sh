#!/usr/bin/env bash
# Run the AISHELL recipe, from the archives to the CER. `./run.sh --help` lists the options; `./run.sh --check` checks
# the setup without running anything.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe aishell "$@"

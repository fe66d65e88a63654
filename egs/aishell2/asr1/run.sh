#!/usr/bin/env bash
# Run the aishell2 recipe, from the unpacked corpus to the CER. `./run.sh --help` lists the options;
# --data PATH names the directory of the corpus.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe aishell2 "$@"

#!/usr/bin/env bash
# Run the commonvoice recipe, from the unpacked corpus to the WER. `./run.sh --help` lists the options;
# --data PATH names the directory of the corpus.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe commonvoice "$@"

#!/usr/bin/env bash
# AN4 from archive to WER. `./run.sh --help` lists the options; --data PATH takes a corpus that is on disk already.
# By default tokens are phones and the features are made in the model; both can be changed by options.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe an4 "$@"

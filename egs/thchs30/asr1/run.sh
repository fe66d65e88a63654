#!/usr/bin/env bash
# Run the thchs30 recipe, from the archive to the CER. `./run.sh --help` lists the options; --data PATH uses a
# corpus that is already on disk.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe thchs30 "$@"

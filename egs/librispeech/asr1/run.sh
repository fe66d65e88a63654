#!/usr/bin/env bash
# Run the librispeech recipe, from the archives to the WER. `./run.sh --help` lists the options; --data PATH uses a corpus
# that is already on disk.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe librispeech "$@"

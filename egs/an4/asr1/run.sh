#!/usr/bin/env bash
# Run the AN4 recipe, from the archive to the WER. `./run.sh --help` lists the options; --data PATH uses a corpus that is
# already on disk. By default, tokens are phones and the model computes features from audio; options change both.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe an4 "$@"

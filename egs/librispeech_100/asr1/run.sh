#!/usr/bin/env bash
# librispeech_100 from archive to WER. `./run.sh --help` lists the options; --data PATH takes a corpus that is on disk already.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe librispeech_100 "$@"

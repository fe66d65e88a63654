#!/usr/bin/env bash
# AN4 from archive to WER. `./run.sh --help` lists the options; --data PATH takes a corpus that is on disk already.
# Tokens are phones and the features are made in the model; both can be chosen otherwise: what is typed here wins.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" recipe an4 \
  --feats_type raw --token_type phn --lm_config "" "$@"

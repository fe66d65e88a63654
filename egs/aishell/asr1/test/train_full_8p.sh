#!/usr/bin/env bash
# AISHELL on 8 card(s), from --stage (default -1) to CER: bash test/train_full_8p.sh --data_path=DIRECTORY [--stage=N] [--device cpu]
cd "$(dirname "$0")/.." || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" ascend_test --cards 8 "$@"

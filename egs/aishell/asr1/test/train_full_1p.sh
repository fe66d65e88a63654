#!/usr/bin/env bash
# Run AISHELL on 1 device, from --stage (default -1) to the CER: bash test/train_full_1p.sh --data_path=DIRECTORY [--stage=N] [--device cpu]
cd "$(dirname "$0")/.." || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" ascend_test --cards 1 "$@"

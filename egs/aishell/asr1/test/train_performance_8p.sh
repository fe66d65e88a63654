#!/usr/bin/env bash
# Train a few epochs on 8 devices, to measure throughput: bash test/train_performance_8p.sh --data_path=DIRECTORY [--stage=N] [--device cpu]
cd "$(dirname "$0")/.." || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" ascend_test --cards 8 --performance true "$@"

#!/usr/bin/env bash
# Train a few epochs on 1 device, to measure throughput: bash test/train_performance_1p.sh --data_path=DIRECTORY [--stage=N] [--device cpu]
cd "$(dirname "$0")/.." || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" ascend_test --cards 1 --performance true "$@"

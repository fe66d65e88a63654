#!/usr/bin/env bash
# A few epochs of training on 1 card(s), for the throughput: bash test/train_performance_1p.sh --data_path=DIRECTORY [--stage=N] [--device cpu]
cd "$(dirname "$0")/.." || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" ascend_test --cards 1 --performance true "$@"

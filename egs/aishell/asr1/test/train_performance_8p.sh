#!/usr/bin/env bash
# A few epochs of training on 8 card(s), for the throughput: bash test/train_performance_8p.sh --data_path=DIRECTORY [--stage=N] [--device cpu]
cd "$(dirname "$0")/.." || exit 1
exec "$(command -v tympan || echo ../../../.venv/bin/tympan)" ascend_test --cards 8 --performance true "$@"

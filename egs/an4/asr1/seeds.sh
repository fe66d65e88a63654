#!/usr/bin/env bash
# Train with three seeds and print the spread of their error rates: ./seeds.sh --data PATH. An interrupted run continues.
cd "$(dirname "$0")" || exit 1
for seed in 1 2 3; do
  ./run.sh --stage -1 --ngpu 0 --tag "seed$seed" --asr_args "--seed $seed" "$@" || exit
done
exec "$(command -v python3)" spread.py exp/*_seed[123]

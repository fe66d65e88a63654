#!/usr/bin/env bash
# Three seeds of the final settings and their spread: ./seeds.sh --data PATH. Broken off, it continues where it was.
cd "$(dirname "$0")" || exit 1
for seed in 1 2 3; do
  ./run.sh --stage -1 --ngpu 0 --tag "seed$seed" --asr_args "--seed $seed" "$@" || exit
done
exec "$(command -v python3)" spread.py exp/*_seed[123]

"""Print the error rates of several runs with mean and standard deviation: python3 spread.py EXP_DIR ..."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

rates: defaultdict[str, dict[str, float]] = defaultdict(dict)
for directory in map(Path, sys.argv[1:]):
    for score in sorted(directory.glob("decode_*/score*/score.json")):
        name = f"{score.parent.parent.name} {score.parent.name}"
        rates[name][directory.name] = json.loads(score.read_text(encoding="utf-8"))["error_rate"]
if not rates:
    sys.exit(f"no score.json under {' '.join(sys.argv[1:]) or 'the given directories (none were given)'}")
for name, found in rates.items():
    values = list(found.values())
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    print(f"{name}: {statistics.fmean(values):.2f} %{spread}   ({', '.join(f'{v:.2f}' for v in values)})")

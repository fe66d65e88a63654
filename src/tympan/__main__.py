"""`python -m tympan` is `tympan`."""

from tympan.bin.main import cli

raise SystemExit(cli())

"""Options and their parsing; every option has the same name on the command line and in YAML."""

from tympan.config.option import argument, option
from tympan.config.parse import dump_config, dump_run_config, parse_args
from tympan.config.read import load_training_config, parse_training
from tympan.config.registry import Registry
from tympan.config.resolve import Conflict

__all__ = [
    "Conflict",
    "Registry",
    "argument",
    "dump_config",
    "dump_run_config",
    "load_training_config",
    "option",
    "parse_args",
    "parse_training",
]

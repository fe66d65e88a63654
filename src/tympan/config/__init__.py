"""Options and their parsing: the command line equals YAML."""

from tympan.config.option import argument, option
from tympan.config.parse import dump_config, parse_args
from tympan.config.registry import Registry

__all__ = ["Registry", "argument", "dump_config", "option", "parse_args"]

"""The command line as values: `--option value`, lists that may be repeated, `*_conf key=value`."""

from __future__ import annotations

import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tympan.config.cast import from_text, members_of
from tympan.config.mistakes import Mistakes, did_you_mean, nearest
from tympan.config.option import Option
from tympan.config.registry import merged
from tympan.config.yaml_text import parse_yaml
from tympan.errors import UserError

SWITCHES = ("help", "print_config")
_BOOLEANS = {"true", "false", "yes", "no", "on", "off", "1", "0"}
_NULL = ("none", "null")


@dataclass
class CommandLine:
    """The parsed command line."""

    values: dict[str, Any] = field(default_factory=dict)
    resets: dict[str, None] = field(default_factory=dict)
    """Options given as `*_conf null`: their keys in the config files are ignored."""
    configs: list[str] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)


def read_command_line(argv: Sequence[str], options: Mapping[str, Option], mistakes: Mistakes) -> CommandLine:
    """Sort `argv` into values, config files and switches; mistakes are collected, not raised."""
    shorts = {item.extra.short: item.flag for item in options.values() if item.extra.short}
    words = [shorts.get(word, word) for word in argv]
    line = CommandLine()
    texts: dict[str, list[list[str]]] = {}
    loose: list[str] = []
    rejected: dict[int, Option] = {}  # for words without an option: the option before it that did not take the word
    previous: Option | None = None
    while words:
        word = words.pop(0)
        if word == "--":
            loose += words
            break
        if not _is_flag(word) and word != "-h":
            if previous is not None and (previous.type is bool or _is_number_list(previous)):
                rejected[len(loose)] = previous
            loose.append(word)
            previous = None
            continue
        name, has_value, value = word.removeprefix("--").partition("=")
        if name in ("help", "-h", "print_config"):
            line.switches.add("help" if name == "-h" else name)
            continue
        option = options.get(name)
        if name != "config" and (option is None or option.extra.positional):
            mistakes.add("", _unknown(name, options))
            if not has_value:
                _drop_values(words)
            continue
        count = len(words)
        given = [value] if has_value else _take_values(words, option)
        previous = option if not has_value and len(words) == count else None
        if name == "config":
            line.configs += given
            if not given:
                mistakes.add("--config", "needs a value: a YAML file")
        else:
            texts.setdefault(name, []).append(given)
    for name, occurrences in texts.items():
        _read_option(options[name], occurrences, line, mistakes)
    positionals = [item for item in options.values() if item.extra.positional]
    for place, word in _read_positionals(positionals, loose, line):
        if place in rejected:
            wanted = "true or false" if rejected[place].type is bool else "numbers"
            mistakes.add(rejected[place].flag, f"expects {wanted}, found '{word}'")
        else:
            known = [item.name for item in positionals]
            mistakes.add("", f"'{word}' is not expected here.{did_you_mean(word, known)} Options start with '--'")
    return line


def split_words(text: str, *, option: str) -> list[str]:
    """The words of a value that is a command line itself, such as of --asr_args."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{option}: {str(error)[0].lower()}{str(error)[1:]} in {text!r}") from None


def _unknown(name: str, options: Mapping[str, Option]) -> str:
    underscored = name.replace("-", "_")
    known = [name for name, item in options.items() if not item.extra.positional] + [*SWITCHES, "config"]
    if underscored != name and underscored in known:
        return f"unknown option '--{name}': option names are written with '_'. Use '--{underscored}'"
    if underscored in options:
        return f"unknown option '--{name}': {underscored.upper()} is an argument, write its value without '--{name}'"
    near = nearest(name, known)
    return f"unknown option '--{name}'." + (f" Did you mean '--{near}'?" if near else " '--help' lists the options")


def _drop_values(words: list[str]) -> None:
    while words and not _is_flag(words[0]):
        words.pop(0)


def _is_flag(word: str) -> bool:
    """`--asr_args "--max_epoch 2"`: a word that contains a space is the value of an option, not another option."""
    return word.startswith("--") and " " not in word.partition("=")[0]


def _take_values(words: list[str], option: Option | None) -> list[str]:
    if option is None:
        most = 1
    else:
        members = [typing.get_origin(member) or member for member in members_of(option.type)]
        if bool in members and len(members) == 1:
            return [words.pop(0)] if words and words[0].lower() in _BOOLEANS else ["true"]
        most = 10**6 if any(member in (list, tuple, dict) for member in members) else 1
    # A list of numbers ends at the first word that is not a number, so that a positional argument may follow it.
    is_numeric = option is not None and _is_number_list(option)
    is_conf = option is not None and option.is_conf
    taken: list[str] = []
    while words and len(taken) < most and not _is_flag(words[0]):
        if taken and is_conf and "=" not in words[0] and not words[0].startswith("{"):
            break
        if is_numeric and not (_is_number(words[0]) or words[0].startswith("[") or words[0] in ("null", "None")):
            break
        taken.append(words.pop(0))
    return taken


def _is_number_list(option: Option) -> bool:
    items = [typing.get_args(member) for member in members_of(option.type) if typing.get_origin(member) is list]
    return bool(items) and all(item in ((int,), (float,)) for item in items)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_option(option: Option, occurrences: list[list[str]], line: CommandLine, mistakes: Mistakes) -> None:
    origins = {typing.get_origin(member) or member for member in members_of(option.type)}
    is_list = list in origins
    if not is_list and any(not given for given in occurrences):
        mistakes.add(option.flag, "needs a value")
        return
    try:
        if option.is_conf:
            texts = [text for given in occurrences for text in given]
            if any(text.lower() in _NULL for text in texts):
                line.resets[option.name] = None
            line.values[option.name] = _read_conf(option, texts)
        elif is_list:
            line.values[option.name] = _read_list(option, [text for given in occurrences for text in given])
        elif tuple in origins:
            last = occurrences[-1]
            line.values[option.name] = last if len(last) > 1 else from_text(last[0], option.type)
        else:
            line.values[option.name] = from_text(occurrences[-1][0], option.type)
    except UserError as error:
        mistakes.add(option.flag, str(error))


def _read_list(option: Option, texts: list[str]) -> Any:
    """Each word is an item or a YAML list of items; a single word may also be null, where the option allows it."""
    members = members_of(option.type)
    if len(texts) == 1 and len(members) > 1:
        value = from_text(texts[0], option.type)
        if value is None or not isinstance(value, list):
            return value
    item_type: Any = next((typing.get_args(item) for item in members if typing.get_origin(item) is list), (Any,))[0]
    items: list[Any] = []
    for text in texts:
        value = from_text(text, item_type)
        # `[a, b]` is a list of items; if the items are triples, `[a, b, c]` is one item.
        if isinstance(value, list) and not (typing.get_origin(item_type) is tuple and not _is_nested(value)):
            items += value
        else:
            items.append(value)
    return items


def _is_nested(value: list[Any]) -> bool:
    return any(isinstance(item, list) for item in value) or not value


def _read_conf(option: Option, texts: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for text in texts:
        if text.lower() in _NULL:
            result = {}
            continue
        key, is_pair, value = text.partition("=")
        if not is_pair or text.lstrip().startswith("{"):
            mapping = parse_yaml(text, "text").value
            if not isinstance(mapping, dict):
                raise UserError(f"expects key=value or \"{{key: value}}\", found '{text}'")
        else:
            mapping = parse_value(value)
            for part in reversed(key.strip().split(".")):
                mapping = {part: mapping}
        result = merged(result, mapping)
    return result


def parse_value(text: str) -> Any:
    """Parse a value inside a `*_conf`: YAML, or text if it is not valid YAML."""
    if text.lower() in _NULL:
        return None
    try:
        return parse_yaml(text, "value").value
    except UserError:
        return text


def _read_positionals(positionals: list[Option], words: list[str], line: CommandLine) -> list[tuple[int, str]]:
    """Give the words to the positional arguments, from the left. Returns those that are left over, with their place."""
    left = list(words)
    for index, option in enumerate(positionals):
        is_list = any((typing.get_origin(member) or member) is list for member in members_of(option.type))
        if is_list:
            after = sum(item.is_required for item in positionals[index + 1 :])
            taken, left = left[: len(left) - after], left[max(0, len(left) - after) :]
            if taken:
                line.values[option.name] = _read_list(option, taken)
        elif left:
            line.values[option.name] = from_text(left.pop(0), option.type)
    first = len(words) - len(left)
    return list(enumerate(left, first))

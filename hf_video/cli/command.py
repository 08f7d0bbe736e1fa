"""What a command is, and how the words of a command line become its settings."""

import argparse
import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

import hf_video
from hf_video.settings import (
    OTHER_FLAGS,
    Setting,
    Settings,
    aliases_of,
    closest,
    find_type,
    groups_of,
    read_value,
    settings_of,
    training_argument_types,
)

from . import EXIT_CODES


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: a name, a sentence, typed settings and a function.

    Attributes:
        help: the sentence in the list of commands.
        settings: a dataclass, whose fields become flags.
        run: gets the settings, and returns an exit code (`EXIT_CODES`).
        description, epilog, usage: texts of its `--help`.
        takes_several_processes: whether a launcher may start it several times at once.
    """

    name: str
    help: str
    settings: type[Settings]
    run: Callable[[Any], int]
    description: str = ""
    epilog: str | Callable[[], str] = ""
    usage: str | None = None
    takes_several_processes: bool = False


def parse(argv: Sequence[str], commands: Sequence[Command]) -> tuple[Command, Any]:
    """The command that words name, and its settings; `argparse` exits on a mistake, and after help.

    Args:
        argv: the words after `hf-video`.
        commands: all commands.

    Raises:
        ValueError: there is no such flag, a value is not of the type of its setting, or it is out of its bounds.
    """
    parser = argparse.ArgumentParser(
        prog="hf-video",
        description="Train, evaluate and use video classifiers with Hugging Face Transformers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hf-video {hf_video.__version__}")
    added = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        is_chosen = argv[:1] == [command.name]
        epilog = command.epilog if isinstance(command.epilog, str) else command.epilog() if is_chosen else ""
        of_command = added.add_parser(
            command.name,
            help=command.help,
            description=command.description or f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=epilog,
            usage=command.usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        of_command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        of_command.set_defaults(command=command, parser=of_command, given={})
        if is_chosen:
            argv = _add_flags(of_command, command.settings, argv)
    try:
        args, rest = parser.parse_known_args(argv)
        _refuse(rest, args)
    except SystemExit as end:
        for word in argv if end.code else ():
            if word.startswith("-") and os.path.lexists(word):
                print(f"{word} is a file here. Its name begins like an option: write ./{word}", file=sys.stderr)
        raise
    return args.command, _read(args.command.settings, args.given)


class _Given(argparse.Action):
    """Stores (flag as the user wrote it, its text) in the namespace, in the mapping `given` by name of setting."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        word = values if self.nargs != 0 else "false" if str(flag).startswith("--no-") else "true"
        namespace.given = namespace.given | {self.dest: (flag or self.metavar, word)}


class _GivenAgain(_Given):
    """Stores a list of the texts of a flag that may be given several times."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        _, before = namespace.given.get(self.dest, (flag, []))
        super().__call__(parser, namespace, [*before, values], flag)


def _add_flags(parser: argparse.ArgumentParser, kind: Any, argv: Sequence[str]) -> list[str]:
    """Declares the settings of a command, and gives the words with each optional value bound to its flag."""
    known, aliases = settings_of(kind), aliases_of(kind)
    has_common = any(each.common for each in known.values())
    shows_all = "--help-all" in argv or not has_common
    if has_common:
        parser.add_argument("--help-all", action="help", help="list every setting and exit")
    # A recipe may give a value and switch something on.
    has_recipe = "recipe" in known
    for title, listed in groups_of(kind).items():
        group = parser.add_argument_group(title)
        for each in listed:
            if each.name != "training_arguments":
                names = [each.name, *(alias for alias, name in aliases.items() if name == each.name)]
                _add(parser if each.form in ("word", "words", "rest") else group, each, names, has_recipe, shows_all)
    optional_values = {each.flag: (each.bare, each.choices) for each in known.values() if each.bare}
    if "training_arguments" in known:
        # The beginning of a flag may stand for another one when all are declared.
        parser.allow_abbrev = False
        flags = (word.partition("=")[0] for word in argv if word.startswith("--"))
        if shows_all or not all(flag in parser._option_string_actions for flag in flags):
            group = parser.add_argument_group("Other fields of transformers.TrainingArguments")
            for name, hint in training_argument_types().items():
                # `--debug` shows tracebacks.
                if name not in (*known, *OTHER_FLAGS, "debug"):
                    flag, kinds = f"--{name.replace('_', '-')}", {hint, *typing.get_args(hint)}
                    options: dict[str, Any] = {"dest": name, "action": _Given, "default": argparse.SUPPRESS}
                    bare: dict[str, Any] = {"nargs": "?", "const": "true"} if {bool, str} <= kinds else {}
                    group.add_argument(flag, metavar="X", **options, **bare)
                    if bool in kinds:
                        group.add_argument(f"--no-{flag[2:]}", nargs=0, **options)
                    if bool in kinds and not bare:
                        optional_values[flag] = ("true", ["true", "false"])
    return _bind(argv, optional_values)


def _add(group: Any, each: Setting, names: Sequence[str], has_recipe: bool, shows_all: bool) -> None:
    """Declares a setting to `argparse`."""
    default = each.describe_default()
    text = (each.help + (f" (default: {default})" if default else "")).replace("%", "%%")
    options: dict[str, Any] = {"action": _Given, "default": argparse.SUPPRESS, "metavar": each.placeholder}
    options["help"] = text if shows_all or each.common else argparse.SUPPRESS
    if each.form in ("word", "words", "rest"):
        optional = "?" if each.default is not MISSING else None
        options["nargs"] = {"word": optional, "words": "+", "rest": argparse.REMAINDER}[each.form]
        group.add_argument(each.name, **options)
        return
    flags = [f"--{name.replace('_', '-')}" for name in names]
    if each.is_switch:
        del options["metavar"]
        options["nargs"] = 0
        flags += [f"--no-{flag[2:]}" for flag in flags] if has_recipe else []
    elif each.form == "flags":
        options["action"] = _GivenAgain
    elif each.form == "several":
        options["nargs"] = "+"
    group.add_argument(*flags, dest=each.name, required=each.default is MISSING, **options)


def _bind(argv: Sequence[str], optional_values: Mapping[str, tuple[str | None, list[str]]]) -> list[str]:
    """The words of a command line, with `=` between an option that may have a value and this value.

    By itself `argparse` would take any word behind such an option for its value, as DATA in `--resume DATA`.

    Args:
        argv: the words.
        optional_values: by option, the value that it has by itself, and those that may stand behind it.
    """
    words, bound = [*argv], []
    while words:
        word = words.pop(0)
        if word in optional_values:
            by_itself, behind = optional_values[word]
            word += f"={words.pop(0) if words and words[0] in behind else by_itself}"
        bound.append(word)
    return bound


def _read(kind: Any, given: Mapping[str, tuple[str, Any]]) -> Settings:
    """The settings with the values of texts."""
    values = {name: read_value(find_type(kind, name)[1], text, flag) for name, (flag, text) in given.items()}
    others = {name: values.pop(name) for name in list(values) if name not in settings_of(kind)}
    return kind(**values, **({"training_arguments": others} if others else {}))


def _refuse(rest: Sequence[str], args: argparse.Namespace) -> None:
    """Refuses words that are not settings.

    Args:
        rest: the words that `argparse` has left.
        args: what it has read.

    Raises:
        ValueError: a word is `name=value` for a setting, or a flag that the command does not have. The error has the
            flag, or the closest one.
    """
    parser, kind = args.parser, args.command.settings
    if "training_arguments" in settings_of(kind):
        for word in (*rest, args.given.get("data", ("", ""))[1]):
            name, equals, value = word.partition("=")
            plain = name.removeprefix("--").replace("-", "_")
            if plain in OTHER_FLAGS:
                raise ValueError(f"{plain} is set by the option {OTHER_FLAGS[plain]}.")
            if name.startswith("--"):
                hint = closest(name, parser._option_string_actions) or f"`{parser.prog} --help-all` lists them."
                raise ValueError(f"{parser.prog} has no option {name}. {hint}")
            if equals and name.isidentifier() and not os.path.lexists(word):
                raise ValueError(f"{word}: {_as_flag(name, value, kind)}")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")


def _as_flag(name: str, value: str, kind: Any) -> str:
    """A sentence with the words that give a setting its value; a `ValueError` if there is no such setting."""
    setting = settings_of(kind).get(find_type(kind, name)[0])
    if setting is not None and setting.form == "word":
        return f"{setting.placeholder} needs no name. Write {value}"
    is_switch = setting is not None and setting.is_switch
    flag = name.replace("_", "-")
    words = f"--{'no-' if is_switch and value == 'false' else ''}{flag}{'' if is_switch else f' {value}'}"
    return f"a setting is a flag. Write {words}"

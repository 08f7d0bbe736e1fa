"""Makes flags from declared settings, and reads their values from a command line or a recipe."""

import argparse
import dataclasses
import functools
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import hf_video
from hf_video.settings import Setting, closest, one_of, read_value, settings_of

from . import EXIT_CODES

# Names that are not settings, two of them fields of TrainingArguments, and the flags that do the same.
_FLAGS_OF_FIELDS = {"resume": "--resume", "resume_from_checkpoint": "--resume", "use_cpu": "--device"}


class CommandSettings:
    """The settings of a command.

    Args:
        kinds: dataclasses of settings that have no name in common. If an alias is also the name of another setting,
            the command has no such alias.
        takes_training_arguments: whether every other field of `transformers.TrainingArguments` is a setting, too.
        without: names of settings that the dataclasses declare and the command does not have.
        common: names of the settings that `--help` lists; `--help-all` lists the others. By default all are common.
    """

    def __init__(
        self,
        *kinds: type,
        takes_training_arguments: bool = False,
        without: Sequence[str] = (),
        common: Sequence[str] = (),
    ):
        self.kinds = kinds
        self.takes_training_arguments = takes_training_arguments
        self.common = common
        declared = {name: each for kind in kinds for name, each in settings_of(kind).items()}
        self.by_name = {name: each for name, each in declared.items() if name not in without}
        self.aliases = {
            alias: name for name, each in self.by_name.items() for alias in each.aliases if alias not in self.by_name
        }

    def groups(self) -> dict[str, list[Setting]]:
        """The settings under the titles of their dataclasses."""
        found: dict[str, list[Setting]] = {}
        for kind in self.kinds:
            group = found.setdefault(kind.__doc__ or kind.__name__, [])
            group += [self.by_name[name] for name in settings_of(kind) if name in self.by_name]
        return found

    def aliases_of(self, setting: Setting) -> list[str]:
        return [alias for alias, name in self.aliases.items() if name == setting.name]

    def canonical(self, name: str) -> str:
        """The name of a setting, for the name or an alias.

        Raises:
            ValueError: there is no such setting. The error names a similar one.
        """
        if name in _FLAGS_OF_FIELDS and self.takes_training_arguments:
            raise ValueError(f"{name} is set by the option {_FLAGS_OF_FIELDS[name]}.")
        name = self.aliases.get(name, name)
        if name in self.by_name or name in self.training_fields():
            return name
        hint = closest(name, [*self.by_name, *self.aliases, *self.training_fields()])
        raise ValueError(f"{name!r} is not a setting. {hint or '`hf-video COMMAND --help` lists them.'}")

    def read(self, name: str, value: Any, spelled: str) -> Any:
        """The checked value of a setting, from its text; `spelled` is the name that the user wrote.

        Raises:
            ValueError: the value is not of the type of the setting, or out of its bounds.
        """
        declared = self.by_name.get(name)
        if declared is not None:
            value = read_value(declared.type, value, spelled)
        # Transformers knows which schedules and optimizers there are; our declarations do not list them.
        if declared is None or (declared.type is str and self.takes_training_arguments):
            fields = self.training_fields()
            value = read_value(fields[name], value, spelled) if name in fields else value
        return value

    def is_changeable(self, name: str) -> bool:
        """Whether a resumed run may have another value."""
        return name in self.by_name and self.by_name[name].is_changeable

    def default(self, name: str) -> Any:
        """The default of a setting that has one."""
        if name in self.by_name:
            return self.by_name[name].default
        from transformers import TrainingArguments

        field = TrainingArguments.__dataclass_fields__[name]
        return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()

    def training_fields(self) -> Mapping[str, Any]:
        """The types of all fields of `transformers.TrainingArguments` by name, if the command takes them."""
        return training_argument_types() if self.takes_training_arguments else {}


@functools.cache
def training_argument_types() -> dict[str, Any]:
    """The types of all fields of `TrainingArguments`, with the choices of those that have some."""
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    found = {}
    for field in dataclasses.fields(TrainingArguments):
        if field.init:
            choices = field.metadata.get("choices")
            found[field.name] = Annotated[hints[field.name], one_of(tuple(choices))] if choices else hints[field.name]
    return found


class _Given(argparse.Action):
    """Stores (flag as the user wrote it, its text) in the namespace, in the mapping `given` by name of setting."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        word = values if self.nargs != 0 else "false" if str(flag).startswith("--no-") else "true"
        namespace.given = getattr(namespace, "given", {}) | {self.dest: (flag or self.metavar, word)}


def add_flags(parser: argparse.ArgumentParser, settings: CommandSettings, positional: str | None = None) -> None:
    """Adds a flag to a parser for each setting and for its aliases; `values_of` and `run_settings` read their texts.

    Args:
        parser: the parser of the command.
        settings: the settings of the command.
        positional: name of the setting that is given without a flag.
    """
    shows_all = parser.get_default("shows_all") or not settings.common
    parser.set_defaults(settings=settings, given={})
    if settings.common:
        parser.add_argument("--help-all", action="help", help="list every setting and exit")
    if settings.takes_training_arguments:
        parser.add_argument("--recipe", metavar="NAME_OR_FILE", help="a published recipe, or a YAML file of settings")
    for title, listed in settings.groups().items():
        group = parser.add_argument_group(title)
        for each in listed:
            default = each.describe_default()
            text = (each.help + (f" (default: {default})" if default else "")).replace("%", "%%")
            help = text if shows_all or each.name in settings.common else argparse.SUPPRESS
            options: dict[str, Any] = {"action": _Given, "help": help, "default": argparse.SUPPRESS}
            if each.name == positional:
                # A recipe may give it.
                if each.default is not dataclasses.MISSING or settings.takes_training_arguments:
                    options["nargs"] = "?"
                parser.add_argument(each.name, metavar=each.placeholder, **options)
                continue
            names = [_dashed(name) for name in (each.name, *settings.aliases_of(each))]
            flags = [f"--{name}" for name in names]
            if each.is_switch:
                options["nargs"] = 0
                # A recipe may switch it on.
                flags += [f"--no-{name}" for name in names] if settings.takes_training_arguments else []
            else:
                options["metavar"] = each.placeholder
            # A recipe may give it, if the command takes one.
            is_required = each.default is dataclasses.MISSING and not settings.takes_training_arguments
            group.add_argument(*flags, dest=each.name, required=is_required, **options)


def add_training_fields(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field of `TrainingArguments` that the settings of a command do not declare. A flag of a
    boolean stands for true, and `--flag false` for false."""
    settings: CommandSettings = parser.get_default("settings")
    optional_values = dict(parser.get_default("optional_values") or {})
    group = parser.add_argument_group("Other fields of transformers.TrainingArguments")
    for name, hint in settings.training_fields().items():
        # `--debug` shows tracebacks.
        if name not in settings.by_name and name != "debug" and name not in _FLAGS_OF_FIELDS:
            group.add_argument(f"--{_dashed(name)}", dest=name, action=_Given, default=argparse.SUPPRESS, metavar="X")
            if hint is bool:
                optional_values[f"--{_dashed(name)}"] = ("true", "false")
    parser.set_defaults(optional_values=optional_values)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def values_of(args: argparse.Namespace) -> argparse.Namespace:
    """The namespace with a value for each setting of a command without recipes: the given one, else the default.

    Raises:
        ValueError: a value is not of the type of its setting, or out of its bounds.
    """
    settings: CommandSettings = args.settings
    values = {name: each.default for name, each in settings.by_name.items()}
    values |= {name: settings.read(name, word, flag) for name, (flag, word) in args.given.items()}
    return argparse.Namespace(**vars(args) | values)


def parse(argv: Sequence[str], commands: Mapping[str, Any]) -> argparse.Namespace:
    """The options for `run` of a command; `argparse` exits on a mistake.

    Args:
        argv: the words after `hf-video`.
        commands: modules with `add_parser` and `run`, by the name of the command.

    Raises:
        ValueError: a value is not of the type of its setting, or out of its bounds.
    """
    parser = argparse.ArgumentParser(
        prog="hf-video",
        description="Train, evaluate and use video classifiers with Hugging Face Transformers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hf-video {hf_video.__version__}")
    added = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shows_all = "--help-all" in argv
    for name, command in commands.items():
        command_parser = command.add_parser(added)
        # To import the settings of the other commands would take longer than the rest of `--help`.
        if name in argv[:1] and hasattr(command, "add_options"):
            command_parser.set_defaults(shows_all=shows_all)
            command.add_options(command_parser)
        command_parser.add_argument(
            "--debug", action="store_true", default=False, help="show the traceback of an error"
        )
        command_parser.set_defaults(run=command.run, parser=command_parser)
        if name in argv[:1]:
            settings = command_parser.get_default("settings")
            if settings is not None and settings.takes_training_arguments:
                # The beginning of a flag may stand for another one when all are declared.
                command_parser.allow_abbrev = False
                if shows_all or any(word.startswith("--") and not _is_flag(word, command_parser) for word in argv):
                    add_training_fields(command_parser)
            argv = _bind(argv, command_parser.get_default("optional_values") or {})
    try:
        args, rest = parser.parse_known_args(argv)
        settings = getattr(args, "settings", None)
        if settings is not None and settings.takes_training_arguments:
            _refuse_words([*rest, args.given.get("data", ("", ""))[1]], settings)
            _refuse_flags(rest, args.parser)
        if rest:
            args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as end:
        for word in argv if end.code else ():
            if word.startswith("-") and os.path.lexists(word):
                print(f"{word} is a file here. Its name begins like an option: write ./{word}", file=sys.stderr)
        raise
    return args if settings is None or settings.takes_training_arguments else values_of(args)


def _is_flag(word: str, parser: argparse.ArgumentParser) -> bool:
    return word.partition("=")[0] in parser._option_string_actions


def _refuse_flags(words: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """
    Raises:
        ValueError: a word is a flag that the command does not have. The error names the closest one.
    """
    settings: CommandSettings = parser.get_default("settings")
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        if flag.removeprefix("--").replace("-", "_") in _FLAGS_OF_FIELDS:
            settings.canonical(flag.removeprefix("--").replace("-", "_"))
        hint = closest(flag, parser._option_string_actions) or f"`{parser.prog} --help-all` lists them."
        raise ValueError(f"{parser.prog} has no option {flag}. {hint}")


def _refuse_words(words: Sequence[str], settings: CommandSettings) -> None:
    """
    Raises:
        ValueError: a word is `name=value` for a setting. The error has the flag.
    """
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or os.path.lexists(word):
            continue
        name = settings.canonical(name)
        if name == "data":
            raise ValueError(f"{word}: DATA needs no name. Write {value}")
        is_switch = settings.by_name[name].is_switch if name in settings.by_name else False
        flag = f"--{'no-' if is_switch and value == 'false' else ''}{_dashed(name)}"
        raise ValueError(f"{word}: a setting is a flag. Write {flag}{'' if is_switch else f' {value}'}")


def _bind(argv: Sequence[str], optional_values: Mapping[str, tuple[str, str]]) -> list[str]:
    """The words of a command line, with `=` between an option that may have a value and this value.

    By itself `argparse` would take any word behind such an option for its value, as DATA in `--resume DATA`.

    Args:
        argv: the words.
        optional_values: by option, the value that it has by itself, and the only one that may stand behind it.
    """
    words, bound = [*argv], []
    while words:
        word = words.pop(0)
        if word in optional_values:
            by_itself, behind = optional_values[word]
            word += f"={words.pop(0) if words[:1] == [behind] else by_itself}"
        bound.append(word)
    return bound

"""Tells Griffe, which reads the source alone, what it would not see or not understand."""

import ast
import re
from typing import Any

from griffe import Alias, Attribute, Class, Docstring, ExprCall, ExprKeyword, Extension, Function, Module, Object

from hf_video.auto import PUBLIC_NAMES

# `name, other (`int`, defaults to 3):`, which may be wrapped after a comma, "or" or "*".
PARAMETER = re.compile(r"^( *)(\w+(?:,\s+\w+)*) \(([^\n]*(?:(?:,| or| \*)\n +[^\n]*)?)\):(?=\s)", re.MULTILINE)
CLASS = re.compile(rf"\[`({'|'.join(PUBLIC_NAMES)})`\]")
ADDRESS = re.compile(r"(?<!<)(?<!\]\()https?://[^\s<>)]+(?<![.,])")


class GriffeReading(Extension):
    def on_module_members(self, *, mod: Module, **kwargs: Any) -> None:
        """A package that loads its public names at their first use has a table of names and modules."""
        if mod.path == "hf_video":
            names = PUBLIC_NAMES
        elif "_PUBLIC_NAMES" in mod.members:
            table = ast.literal_eval(str(mod["_PUBLIC_NAMES"].value))
            names = {name: f".{module}" for module, defined in table.items() for name in defined.split()}
        else:
            return
        for name, module in names.items():
            target = mod.path + module if module.startswith(".") else module
            mod.set_member(name, Alias(name, f"{target}.{name}", parent=mod))
        mod.exports = [*names]

    def on_attribute_instance(self, *, attr: Attribute, **kwargs: Any) -> None:
        """A field `name: type = setting(default, help)` has this default, and its help as its docstring."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "setting":
            arguments = attr.value.arguments
            values = {each.name: each.value for each in arguments if isinstance(each, ExprKeyword)}
            unnamed = [each for each in arguments if not isinstance(each, ExprKeyword)]
            values |= dict(zip(("default", "help"), unnamed, strict=False))
            attr.value, text = values.get("default"), values.get("help")
            if isinstance(text, str):
                attr.docstring = Docstring(ast.literal_eval(text), parent=attr)

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        _read_markup(cls, shows_defaults="__init__" in cls.members)

    def on_function_instance(self, *, func: Function, **kwargs: Any) -> None:
        _read_markup(func, shows_defaults=True)


def _read_markup(obj: Object, shows_defaults: bool) -> None:
    """Turns the markup of Transformers into that of Google's docstrings and Markdown.

    Args:
        obj: what the docstring is about.
        shows_defaults: whether the defaults are known from a signature.
    """

    def parameter(match: re.Match[str]) -> str:
        indent, names, kind = (re.sub(r"\s*\n\s*", " ", part) for part in match.groups())
        kind = re.sub("[`*]", "", CLASS.sub(r"\1", kind))
        if shows_defaults:
            kind = re.sub(", defaults to [^()]*$", "", kind)
        return f"{indent}{names} ({kind}):"

    if obj.docstring:
        text = PARAMETER.sub(parameter, obj.docstring.value)
        obj.docstring.value = CLASS.sub(r"[`\1`][hf_video.\1]", ADDRESS.sub(r"<\g<0>>", text))

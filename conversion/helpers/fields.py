"""Makes our configuration of what the tensors, the original configuration and `--set` say."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hf_video.io import read_object
from hf_video.settings import closest

from .checkpoint import ConversionError

# The arguments of an original constructor: the field of our configuration that each sets, if there is one, and its
# default.
Arguments = Mapping[str, tuple[str | None, Any]]
# Stands for a field that neither tensors nor settings tell.
UNKNOWN: Any = object()
# The row of an argument that sets no field by itself, or only initialises.
UNREAD = (None, None)

# Attention heads of the published towers, decoders and texts, by width.
HEADS = {192: 3, 384: 6, 512: 8, 640: 8, 768: 12, 1024: 16, 1280: 16, 1408: 16}
# Of BERT, with the defaults of the original's `BertConfig`.
BERT_ARGUMENTS: dict[str, tuple[str | None, Any]] = {
    "hidden_act": ("hidden_act", "gelu"),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
    "hidden_dropout_prob": ("hidden_dropout_prob", 0.1),
    "attention_probs_dropout_prob": ("attention_probs_dropout_prob", 0.1),
    "pad_token_id": ("pad_token_id", 0),
    "initializer_range": ("initializer_range", 0.02),
    "num_attention_heads": ("num_attention_heads", UNKNOWN),
}


def bert_fields(given: Mapping[str, Any], found: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a configuration of BERT; `names` are those of the fields that tensors show, in the original."""
    arguments = BERT_ARGUMENTS | {name: (field, found[field]) for name, field in names.items() if field in found}
    return with_heads(read_section(given, arguments, found))


def with_heads(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields, with the heads of the published widths where nothing tells their number."""
    unknown = [name for name, value in fields.items() if value is UNKNOWN and name.endswith("num_attention_heads")]
    widths = {name: fields[name.replace("num_attention_heads", "hidden_size")] for name in unknown}
    return fields | {name: HEADS.get(width, UNKNOWN) for name, width in widths.items()}


def read_original(path: Path | None, *sections: str) -> dict[str, Any]:
    """The content of the file of `--original-config`, if there is one, with these objects in it, without nulls."""
    content = {} if path is None else read_object(path)
    return without_null(content) | {name: without_null(content.get(name) or {}, name) for name in sections}


def without_null(content: Mapping[str, Any], name: str = "FILE.json") -> dict[str, Any]:
    """The arguments that are given in a section of this name: null is none."""
    if not isinstance(content, Mapping):
        raise ConversionError(f"{name} must be an object, got {content!r}.")
    return {name: value for name, value in content.items() if value is not None}


def read_fields(given: Mapping[str, Any], arguments: Arguments, found: dict[str, Any]) -> dict[str, Any]:
    """Fields of our configuration: those that tensors show, and what the arguments in a file say. Raises
    `ConversionError` if an argument is unknown, is no number where one is expected, or contradicts the tensors."""
    if unknown := sorted(set(given) - set(arguments)):
        raise ConversionError(
            f"The original configuration has unknown keys {unknown}; the original takes {sorted(arguments)}."
        )
    told = {name: found[field] for name, (field, _) in arguments.items() if field in found}
    values = {name: default for name, (_, default) in arguments.items()} | agree(given, told)
    for name, value in given.items():
        if isinstance(arguments[name][1], int | float) and not isinstance(value, int | float | list):
            raise ConversionError(f"The original configuration says {name}={value!r}, a number or switch is expected.")
    return {field: values[name] for name, (field, _) in arguments.items() if field is not None} | found


def read_section(given: Mapping[str, Any], arguments: Arguments, found: dict[str, Any]) -> dict[str, Any]:
    """[`read_fields`] of a section that has other arguments, too, which are ignored."""
    return read_fields({name: value for name, value in given.items() if name in arguments}, arguments, found)


def agree(given: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the original configuration and those that the tensors show, which must not contradict them."""
    for name, value in found.items():
        said = given.get(name, value)
        # A square may be given as one number or as two.
        if isinstance(said, list) and said and all(side == said[0] for side in said):
            said = said[0]
        if said != value:
            raise ConversionError(f"The original configuration says {name}={said!r}, the tensors say {value!r}.")
    return {**given, **found}


class Part(NamedTuple):
    """A configuration inside another one: its class, and what is known of its fields."""

    config_class: Any
    fields: dict[str, Any]


def make_config(config_class: Any, fields: Mapping[str, Any], settings: Iterable[str], place: str = "") -> Any:
    """Our configuration with the values of `--set`: `FIELD=VALUE`, or `PART.FIELD=VALUE` for a [`Part`]. A field that
    is `UNKNOWN` must be set."""
    # Transformers gives the types of its own fields as text.
    hints = {each.name: Any if isinstance(each.type, str) else each.type for each in dataclass_fields(config_class)}
    hints |= {"num_labels": int}
    made, inside = dict(fields), defaultdict[str, list[str]](list)
    for word in settings:
        name, is_given, text = word.partition("=")
        part, _, field = name.partition(".")
        if is_given and field and isinstance(made.get(part), Part):
            inside[part].append(f"{field}={text}")
        elif is_given and name in hints:
            made[name] = _typed(word, hints[name], text)
        else:
            hint = closest(name, hints)
            raise ConversionError(f"--set {word}: expected FIELD=VALUE of a {config_class.__name__}. {hint}".strip())
    for name, value in made.items():
        if value is UNKNOWN:
            raise ConversionError(
                f"The tensors do not tell {place}{name}: pass `--set {place}{name}=VALUE`, or what the original has "
                "with `--original-config FILE.json`."
            )
        if isinstance(value, Part):
            made[name] = make_config(value.config_class, value.fields, inside[name], f"{place}{name}.")
    return config_class(**made)


def _typed(word: str, hint: Any, text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        raise ConversionError(f"--set {word}: {error.errors()[0]['msg']}, got {text!r}.") from error

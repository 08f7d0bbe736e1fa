"""List the models that their authors released. Every command takes one by its name, as in `--model NAME`: the first
time, the authors' file is fetched from the Hub and converted. `hf-video convert NAME OUTPUT_DIR` writes a folder of
your own. The accuracies are those that the authors report. A size after ~ is that of four bytes a parameter.

The file of a model is on the Hub, or you download it yourself (manual): `hf-video convert NAME OUTPUT_DIR` prints
where it is, and the command that converts it.
"""

import json
from dataclasses import asdict, dataclass

from hf_video.loading.released import ReleasedModel, released_models
from hf_video.settings import Settings, setting

from .command import command


@dataclass(kw_only=True)
class ModelsSettings(Settings):
    """List"""

    json: bool = setting(False, "Print one JSON object.")


@command(help="list the released models, which commands take by name")
def run(settings: ModelsSettings) -> int:
    """Prints a line for each model. Nothing is asked of the Hub."""
    models = released_models().values()
    if settings.json:
        print(json.dumps({model.name: _facts(model) for model in models}))
        return 0
    rows = [("name", "parameters", "accuracy as reported", "licence", "size", "file"), *map(_cells, models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _cells(model: ReleasedModel) -> tuple[str, ...]:
    """The cells of a line. The accuracy is the first figure of the authors."""
    size = f"{model.parameters / 1e6:.1f} M" if model.parameters else "-"
    accuracy = "-"
    for first in model.results[:1]:
        metric = first["metric"].removesuffix("top-1 accuracy")
        accuracy = f"{metric} {first['value']:g} {first['data']}".strip()
    file = "on the Hub" if model.repository else "manual"
    file = "converted" if model.folder.is_dir() else "downloaded" if model.cached_file else file
    size_of_file = model.describe_size() if model.parameters or model.cached_file else "-"
    return model.name, size, accuracy, model.license or "-", size_of_file, file


def _facts(model: ReleasedModel) -> dict:
    file = model.cached_file
    return asdict(model) | {
        "size": file.stat().st_size if file else None,
        "cached_file": str(file) if file else None,
        "converted": str(model.folder) if model.folder.is_dir() else None,
        "sha256": model.sha256,
    }

"""Copy a small trained model and two clips of a real scene into DIR, to try every command without a network and
without videos of your own. The model knows three classes: somebody walks left, walks right, or nobody is there.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hf_video.io import new_folder
from hf_video.settings import Mark, Settings, setting

from .command import command

SHIPPED = Path(__file__).parents[1] / "example"


@dataclass(kw_only=True)
class ExampleSettings(Settings):
    """Example"""

    folder: Annotated[str, Mark(form="word")] = setting("example", "Folder for the model and the clips.", "DIR")


@command(help="copy a small trained model and two clips, to try the other commands")
def run(settings: ExampleSettings) -> int:
    """Prints what to try. A folder that exists is not written over."""
    folder = Path(settings.folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already. Name another folder: hf-video example DIR")
    with new_folder(folder) as unfinished:
        shutil.copytree(SHIPPED, unfinished, dirs_exist_ok=True)
    print(f"""{folder} has a model and two clips. Try:
  hf-video predict {folder}/walks_right.mp4 --model {folder}/model
  hf-video timeline {folder}/there_and_back.mp4 --model {folder}/model --min-duration-on 1
  hf-video explain {folder}/walks_right.mp4 --model {folder}/model""")
    return 0

"""Check a model folder, add the code and a model card, load it where hf_video is not installed, and upload it as one
commit. After an interruption, run the same command again: the upload continues. With --output-dir, write what would go
up into a folder.
"""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hf_video.data.folders import require_inputs
from hf_video.io import new_folder
from hf_video.loading.class_names import read_class_names
from hf_video.output_folders import KEEP, require_fresh
from hf_video.settings import Mark, Settings, setting
from hf_video.texts import count

from .command import command


@dataclass(kw_only=True)
class PublishSettings(Settings):
    """Publishing"""

    folder: Annotated[str, Mark(form="word")] = setting(
        help="A folder that `hf-video train` or save_pretrained wrote.", metavar="DIR"
    )
    repo_id: Annotated[str | None, Mark(form="word")] = setting(
        None, "USER/NAME; made if it does not exist. With --output-dir it may be left out.", "REPO_ID"
    )
    private: bool = setting(False, "Only you can see the repository.")
    revision: str | None = setting(None, "Commit to this branch; by default main.", "BRANCH")
    tag: str | None = setting(None, "Tag the commit, such as v1.0.")
    labels: str | None = setting(
        None,
        "Names of the classes by class id: one a line, a JSON list or id2label object, or a CSV of id,name; or "
        "kinetics400 or imagenet1k for torchvision's list.",
        "FILE",
    )
    license: str | None = setting(
        None, "Licence that the card states, such as mit; by default that of the model it was fine-tuned from."
    )
    with_training_state: bool = setting(False, "Also upload the optimizer's state and the like.")
    allow_tokens: bool = setting(False, "Publish texts in which something looks like a token, too.")
    output_dir: str | None = setting(
        None, "Write what would go up into this folder instead, for a colleague or `hf upload`.", "DIR"
    )
    dry_run: bool = setting(False, "Check everything, show what would go up and the card, and stop.")


@command(help="put a model on the Hugging Face Hub")
def run(settings: PublishSettings) -> int:
    """Prints what happens to every file, and the address of the commit, or for a dry run the card."""
    require_inputs([settings.folder], "The folder of a model is expected.")
    if settings.output_dir is not None:
        require_fresh(Path(settings.output_dir), KEEP)
        for name in ("private", "revision", "tag"):
            if getattr(settings, name):
                raise ValueError(f"--{name} has no effect with --output-dir, which uploads nothing.")
    elif settings.repo_id is None:
        raise ValueError(f"Say the name of the repository: hf-video publish {settings.folder} USER/NAME.")
    repo_id = settings.repo_id or f"./{Path(str(settings.output_dir)).absolute().name}"
    labels = None if settings.labels is None else read_class_names(settings.labels)

    from hf_video.hub import PublishError, push, stage
    from hf_video.hub.folder_checks import CARD
    from hf_video.hub.publishing import plan

    with tempfile.TemporaryDirectory() as staging:
        options = {"labels": labels, "license": settings.license, "allow_tokens": settings.allow_tokens}
        options["with_training_state"] = settings.with_training_state
        publication = stage(settings.folder, staging, repo_id, **options)
        files, stale = publication.files, list[str]()
        if settings.output_dir is None:
            try:
                files, stale = plan(publication, settings.revision)
            except PublishError as error:
                if not settings.dry_run:
                    raise
                print(f"The Hub cannot be reached: treated as a new repository: {error.__cause__}")
        for name, size in files.items():
            print(f"{size:>14,}  {name}")
        for name in stale:
            print(f"{'deleted':>14}  {name}: weights of an earlier upload")
        left_out = Counter((_top_level(name), reason) for name, reason in publication.left_out.items())
        if publication.card_is_generated and CARD not in files:
            left_out[CARD, "the repository has a card, which is never replaced by a written one"] = 1
        for (name, reason), number in left_out.items():
            files_in = f" ({count(number, 'file')})" if name.endswith("/") else ""
            print(f"{'left out':>14}  {name}{files_in}: {reason}")
        if settings.dry_run:
            if CARD in files:
                print(f"\n{CARD}:\n{(publication.folder / CARD).read_text(encoding='utf-8')}")
            print("Nothing was uploaded: --dry-run.")
            return 0
        if settings.output_dir is not None:
            with new_folder(settings.output_dir) as folder:
                # With the permissions of new files: only their owner may read some of the staged ones.
                for file in (path for path in publication.folder.rglob("*") if path.is_file()):
                    (copy := folder / file.relative_to(publication.folder)).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
            print(f"written to {settings.output_dir}; nothing was uploaded")
            return 0
        place = {"revision": settings.revision, "tag": settings.tag}
        commit = push(publication, repo_id, private=settings.private or None, **place)
    print(f"published  {commit.commit_url}")
    return 0


def _top_level(name: str) -> str:
    folder, slash, _ = name.partition("/")
    return folder + slash

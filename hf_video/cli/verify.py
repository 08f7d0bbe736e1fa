"""Check that a published model gives the same numbers here as where it was published. The videos of its self-test are
read, prepared and put through the model, and each step is compared; so are the names of the classes and the options of
the processor.

The exit code is 1 if something differs; the last line names the first part that does.

HF_VIDEO_SELECTIVE_SCAN=BACKEND chooses what computes the scans of a VideoMamba.
"""

from dataclasses import dataclass
from typing import Annotated

from hf_video.inference.inference_settings import ComputingSettings
from hf_video.settings import Mark, Settings, setting

from .command import command

_WORDS = {True: "agree", False: "DIFFER", None: "-"}


@dataclass(kw_only=True)
class VerifySettings(ComputingSettings, Settings):
    """Verifying"""

    model: Annotated[str, Mark(form="word", names="model")] = setting(
        help="A model folder, or the name of one on the Hub.", metavar="MODEL"
    )
    revision: str | None = setting(None, "Branch, tag or commit on the Hub; by default main.")


@command(help="check that a published model gives the same numbers here")
def run(settings: VerifySettings) -> int:
    """Prints a line for each part that was compared, and the first one that differs."""
    from hf_video.hub import verify_model

    found = verify_model(settings.model, revision=settings.revision, device=settings.device, dtype=settings.dtype)
    print(f"here       {found.here}")
    print(f"published  {found.made_with}")
    for finding in found.findings:
        print(f"  {finding.part:14} {_WORDS[finding.agrees]:7} {finding.text}")
    if first := found.first_difference:
        print(f"differs first in its {first.part}: {first.text}")
        return 1
    is_whole = all(finding.agrees for finding in found.findings)
    print("verified" if is_whole else "not run; its labels and its processor are as published")
    return 0

"""Ask whether a classifier of clips uses what it should: accuracy on the videos as they are, and with frames shuffled
or reversed, the middle frame alone, other distances between frames, mirrored, with hidden borders, and in grey. What
it loses without something, it uses. Each figure has its interval of 95 %, and a sentence.

The result is also written to audit.json in the folder of the model, and `hf-video publish` puts it on the card.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_video.inference.inference_settings import AuditSettings, JsonResultSettings
from hf_video.output_folders import check_output_file

from .command import command
from .printing import print_result


@dataclass(kw_only=True)
class AuditCommandSettings(AuditSettings, JsonResultSettings):
    """Settings of `hf-video audit`."""


@command(help="say what a trained model uses: time, one frame, speed, sides, borders, colours")
def run(settings: AuditCommandSettings) -> int:
    """Prints the figures, and writes the file that --output names."""
    check_output_file("output", settings.output)

    from hf_video.evaluation.audit import audit_model, tell_audit

    audit_model(settings, lambda result: print_result(settings, result, tell_audit))
    return 0

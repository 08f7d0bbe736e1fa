"""Pieces of the page in HTML. Names of files and classes come from strangers, so every text is escaped."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from hf_video.drawing.texts import clock
from hf_video.inference.segments import Segment


def message(sentence: str = "", is_problem: bool = False) -> str:
    """What goes on, or what went wrong; screen readers say it."""
    kind = ' class="problem"' if is_problem else ""
    return f'<p role="status"{kind}>{escape(sentence)}</p>'


def segment_list(segments: Sequence[Segment]) -> str:
    """A button for each segment, which knows where it starts."""
    rows = (
        f'<li><button type="button" data-start="{segment.start:.3f}">'
        f"<span>{clock(segment.start, 1)} – {clock(segment.end, 1)}</span>"
        f'<span class="label">{escape(segment.label)}</span><span>{segment.score:.0%}</span></button></li>'
        for segment in segments
    )
    return f"<ol>{''.join(rows)}</ol>" if segments else ""


def picture(png: bytes, description: str) -> str:
    """A picture that is part of the page, so that no file has to be served."""
    return f'<img src="data:image/png;base64,{b64encode(png).decode()}" alt="{escape(description)}">'

"""Texts of the page: pieces of HTML. Names of files and classes come from strangers, so every text is escaped."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from hf_video.inference.segments import Segment
from hf_video.texts import class_color, clock


def message(sentence: str = "", is_problem: bool = False) -> str:
    """What goes on, or what went wrong; screen readers say it."""
    kind = ' class="problem"' if is_problem else ""
    return f'<p role="status"{kind}>{escape(sentence)}</p>'


def segment_list(segments: Sequence[Segment]) -> str:
    """A button for each segment, which knows where it starts."""
    rows = (
        f'<li><button type="button" data-start="{segment.start:.3f}" style="{_color(segment.class_id)}">'
        f"<span>{clock(segment.start, 1)} – {clock(segment.end, 1)}</span>"
        f'<span class="label">{escape(segment.label)}</span><span>{segment.score:.0%}</span></button></li>'
        for segment in segments
    )
    return f"<ol>{''.join(rows)}</ol>" if segments else ""


def class_bars(classes: Sequence[tuple[int, str, float]]) -> str:
    """A bar for each class, given its number, name and score."""
    rows = (
        f'<div style="{_color(class_id)}; --score: {score:.1%}"><dt>{escape(name)}</dt><dd>{score:.1%}</dd></div>'
        for class_id, name, score in classes
    )
    return f"<dl>{''.join(rows)}</dl>"


def _color(class_id: int) -> str:
    return f"--color: {class_color(class_id)}"


def picture(png: bytes, description: str) -> str:
    """A picture that is part of the page, so that no file has to be served."""
    return f'<img src="data:image/png;base64,{b64encode(png).decode()}" alt="{escape(description)}">'

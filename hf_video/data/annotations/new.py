"""New projects of BORIS, ELAN and VIA 3, with nothing but videos and what a model found in them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from string import Template
from typing import Any
from xml.sax.saxutils import quoteattr

from hf_video.io import replace_text
from hf_video.reading import probe_video

from . import TOOLS, by_video
from .table import Table, new_name

SUFFIXES = {"boris": ".boris", "eaf": ".eaf", "via": ".via.json"}
# Projects without videos; then what a project has of each video.
_EMPTY = {
    "boris": """{"time_format": "hh:mm:ss", "project_date": $date, "project_name": $name, "project_description": "",
"project_format_version": "7.0", "subjects_conf": {}, "behaviors_conf": {}, "observations": {},
"behavioral_categories": [], "behavioral_categories_config": {}, "independent_variables": {}, "coding_map": {},
"behaviors_coding_map": [], "converters": {}}""",
    "eaf": """<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT AUTHOR="" DATE=$date FORMAT="3.0" VERSION="3.0"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd">
    <HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"><MEDIA_DESCRIPTOR MEDIA_URL=$url MIME_TYPE="video/mp4"/>
        <PROPERTY NAME="lastUsedAnnotationId">0</PROPERTY></HEADER>
    <TIME_ORDER/>
</ANNOTATION_DOCUMENT>""",
    "via": """{"project": {"pid": "__VIA_PROJECT_ID__", "rev": "__VIA_PROJECT_REV_ID__", "pname": $name,
"created": $now, "rev_timestamp": "__VIA_PROJECT_REV_TIMESTAMP__", "vid_list": [],
"creator": "VGG Image Annotator (http://www.robots.ox.ac.uk/~vgg/software/via)"},
"config": {"file": {"loc_prefix": {"1": "", "2": "", "3": "", "4": ""}}, "ui": {"file_content_align": "center",
"file_metadata_editor_visible": true, "spatial_metadata_editor_visible": true,
"temporal_segment_metadata_editor_visible": true, "spatial_region_label_attribute_id": "",
"gtimeline_visible_row_count": "4"}}, "attribute": {}, "metadata": {}, "view": {}, "file": {}}""",
}
_OF_VIDEO = {
    "boris": """{
"file": {"1": [$place], "2": [], "3": [], "4": [], "5": [], "6": [], "7": [], "8": []}, "type": "MEDIA", "date": $date,
"description": "", "time offset": 0.0, "events": [], "observation time interval": [0, 0], "independent_variables": {},
"visualize_spectrogram": false, "visualize_waveform": false, "close_behaviors_between_videos": false, "media_info": {
"length": {$place: $length}, "fps": {$place: $fps}, "hasVideo": {$place: true}, "hasAudio": {$place: false}}}""",
    "via": """{"fid": $number, "fname": $file, "type": 4, "loc": 3, "src": $place}""",
}


def write_new_annotations(
    format: str, predictions: Iterable[Mapping[str, Any]], output: Path, classes: Sequence[str] = ()
) -> None:
    """Writes a model's segments of videos, see [`write_annotations`], as a project that the tool opens: "boris" with
    an observation of each video, "via", or "eaf" of one video with a tier for each class. `media` is the whole path of
    a video; `classes` are declared, so that the tool offers them. Raises what [`write_annotations`] and
    [`probe_video`][hf_video.reading.probe_video] do."""
    rows = [*predictions]
    videos = [Path(video) for video in dict.fromkeys(row["media"] for row in rows)]
    table, names = Table(output, None, {"classes": classes}), list[str]()
    table.text = _fill(_EMPTY[format], videos[0])
    for number, video in enumerate(videos if format in _OF_VIDEO else (), 1):
        entry, key = json.loads(_fill(_OF_VIDEO[format], video, number)), str(number)
        if format == "boris":
            names.append(new_name(video.stem, names))
            table.json["observations"][names[-1]] = entry
        else:
            table.json["file"][key], table.json["view"][key] = entry, {"fid_list": [key]}
            table.json["project"]["vid_list"].append(key)
    tool = TOOLS[format]
    tool.read(table)
    text = tool.render(table, by_video(table, rows))
    if names:
        project = json.loads(text)
        for name in names:  # an empty observation says that nothing happens
            del project["observations"][name]
        text = json.dumps(project)
    replace_text(output, text)


def _fill(template: str, video: Path, number: int = 1) -> str:
    """A template with the facts of a video."""
    metadata, now = probe_video(str(video)), datetime.now().astimezone()
    facts = {"name": video.stem, "file": video.name, "place": str(video), "length": metadata.duration}
    facts |= {"fps": len(metadata.times) / metadata.duration, "now": round(now.timestamp() * 1000)}
    values = {name: json.dumps(value) for name, value in (facts | {"number": str(number)}).items()}
    values |= {"date": f'"{now.isoformat(timespec="seconds")[:19]}"', "url": quoteattr(video.as_uri())}
    return Template(template).substitute(values)

"""New projects of BORIS, ELAN and VIA 3, with nothing but a video and what a model found in it."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any
from xml.sax.saxutils import quoteattr

from hf_video.io import replace_text
from hf_video.reading import probe_video
from hf_video.texts import replace_json

from . import write_annotations

SUFFIXES = {"boris": ".boris", "eaf": ".eaf", "via": ".via.json"}
_EMPTY = {
    "boris": """{"time_format": "hh:mm:ss", "project_date": $date, "project_name": $name, "project_description": "",
"project_format_version": "7.0", "subjects_conf": {}, "behaviors_conf": {}, "observations": {$name: {
"file": {"1": [$place], "2": [], "3": [], "4": [], "5": [], "6": [], "7": [], "8": []}, "type": "MEDIA", "date": $date,
"description": "", "time offset": 0.0, "events": [], "observation time interval": [0, 0], "independent_variables": {},
"visualize_spectrogram": false, "visualize_waveform": false, "close_behaviors_between_videos": false, "media_info": {
"length": {$place: $length}, "fps": {$place: $fps}, "hasVideo": {$place: true}, "hasAudio": {$place: false}}}},
"behavioral_categories": [], "independent_variables": {}, "coding_map": {}, "behaviors_coding_map": [],
"converters": {}}""",
    "eaf": """<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT AUTHOR="" DATE=$date FORMAT="3.0" VERSION="3.0"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd">
    <HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"><MEDIA_DESCRIPTOR MEDIA_URL=$url MIME_TYPE="video/mp4"/>
        <PROPERTY NAME="lastUsedAnnotationId">0</PROPERTY></HEADER>
    <TIME_ORDER/>
    <LINGUISTIC_TYPE GRAPHIC_REFERENCES="false" LINGUISTIC_TYPE_ID="default-lt" TIME_ALIGNABLE="true"/>
</ANNOTATION_DOCUMENT>""",
    "via": """{"project": {"pid": "__VIA_PROJECT_ID__", "rev": "__VIA_PROJECT_REV_ID__", "pname": $name,
"created": $now, "rev_timestamp": "__VIA_PROJECT_REV_TIMESTAMP__", "vid_list": ["1"],
"creator": "VGG Image Annotator (http://www.robots.ox.ac.uk/~vgg/software/via)"},
"config": {"file": {"loc_prefix": {"1": "", "2": "", "3": "", "4": ""}}, "ui": {"file_content_align": "center",
"file_metadata_editor_visible": true, "spatial_metadata_editor_visible": true,
"temporal_segment_metadata_editor_visible": true, "spatial_region_label_attribute_id": "",
"gtimeline_visible_row_count": "4"}}, "attribute": {}, "metadata": {}, "view": {"1": {"fid_list": ["1"]}},
"file": {"1": {"fid": "1", "fname": $file, "type": 4, "loc": 3, "src": $place}}}""",
}


def write_new_annotations(format: str, predictions: Iterable[Mapping[str, Any]], video: Path, output: Path) -> None:
    """Writes a model's segments of a video, see [`write_annotations`], as a project that the tool opens: "boris" with
    one observation, "eaf" with a tier for each class, or "via". It names the video by its whole path. Raises what
    [`write_annotations`] and [`probe_video`][hf_video.reading.probe_video] do."""
    metadata, now = probe_video(str(video)), datetime.now().astimezone()
    facts = {"name": video.stem, "file": video.name, "place": str(video), "length": metadata.duration}
    facts |= {"fps": len(metadata.times) / metadata.duration, "now": round(now.timestamp() * 1000)}
    values = {name: json.dumps(value) for name, value in facts.items()}
    values |= {"date": f'"{now.isoformat(timespec="seconds")[:19]}"', "url": quoteattr(video.as_uri())}
    with TemporaryDirectory() as folder:
        empty = Path(folder) / f"new{SUFFIXES[format]}"
        replace_text(empty, Template(_EMPTY[format]).substitute(values))
        write_annotations(empty, predictions, output)
    if format == "boris":
        project = json.loads(output.read_text())
        del project["observations"][video.stem]  # an empty observation says that nothing happens
        replace_json(output, project)

"""New projects of BORIS, ELAN and VIA 3, with nothing but a video and what a model found in it."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_video.io import replace_file, replace_text
from hf_video.reading import probe_video
from hf_video.texts import replace_json

from . import write_annotations

SUFFIXES = {"boris": ".boris", "eaf": ".eaf", "via": ".via.json"}
_VIA_FLAGS = ("file_metadata_editor_visible", "spatial_metadata_editor_visible")
_VIA_FLAGS += ("temporal_segment_metadata_editor_visible",)


def write_new_annotations(format: str, predictions: Iterable[Mapping[str, Any]], video: str, output: Path) -> None:
    """Writes a model's segments as a project that the tool opens: "boris" with one observation, "eaf" with a tier for
    each class, or "via". It names the video by its whole path.

    Args:
        format: one of `SUFFIXES`.
        predictions: see [`write_annotations`]; `media` is not needed.
        video: a video file.
        output: the file to write.

    Raises:
        ValueError, OSError: there is no segment, or the video cannot be read.
    """
    path = Path(video).absolute()
    with TemporaryDirectory() as folder:
        empty = Path(folder) / f"new{SUFFIXES[format]}"
        {"boris": _boris, "eaf": _eaf, "via": _via}[format](path, empty)
        write_annotations(empty, [{**each, "media": str(path)} for each in predictions], output)
    if format == "boris":
        project = json.loads(output.read_text())
        del project["observations"][path.stem]  # an empty observation says that nothing happens
        replace_json(output, project)


def _boris(video: Path, output: Path) -> None:
    metadata, now = probe_video(str(video)), datetime.now().isoformat(timespec="milliseconds")
    place, players = str(video), {str(number): [] for number in range(2, 9)}
    info = {"length": {place: metadata.duration}, "fps": {place: len(metadata.times) / metadata.duration}}
    info |= {"hasVideo": {place: True}, "hasAudio": {place: False}}
    observation = {"file": {"1": [place], **players}, "type": "MEDIA", "date": now, "description": ""}
    observation |= {"time offset": 0.0, "events": [], "observation time interval": [0, 0]}
    observation |= {"independent_variables": {}, "visualize_spectrogram": False, "visualize_waveform": False}
    observation |= {"close_behaviors_between_videos": False, "media_info": info}
    project = {"time_format": "hh:mm:ss", "project_date": now[:19], "project_name": video.stem}
    project |= {"project_description": "", "project_format_version": "7.0", "subjects_conf": {}, "behaviors_conf": {}}
    project |= {"observations": {video.stem: observation}, "behavioral_categories": [], "independent_variables": {}}
    replace_json(output, project | {"coding_map": {}, "behaviors_coding_map": [], "converters": {}})


def _eaf(video: Path, output: Path) -> None:
    schema = "{http://www.w3.org/2001/XMLSchema-instance}noNamespaceSchemaLocation"
    facts = {"AUTHOR": "", "DATE": datetime.now().astimezone().isoformat(timespec="seconds"), "FORMAT": "3.0"}
    facts |= {"VERSION": "3.0", schema: "http://www.mpi.nl/tools/elan/EAFv3.0.xsd"}
    root = ET.Element("ANNOTATION_DOCUMENT", facts)
    header = ET.SubElement(root, "HEADER", {"MEDIA_FILE": "", "TIME_UNITS": "milliseconds"})
    kind = "video/mp4" if video.suffix.lower() == ".mp4" else "video/*"
    ET.SubElement(header, "MEDIA_DESCRIPTOR", {"MEDIA_URL": video.as_uri(), "MIME_TYPE": kind})
    ET.SubElement(header, "PROPERTY", {"NAME": "lastUsedAnnotationId"}).text = "0"
    ET.SubElement(root, "TIME_ORDER")
    of_type = {"GRAPHIC_REFERENCES": "false", "LINGUISTIC_TYPE_ID": "default-lt", "TIME_ALIGNABLE": "true"}
    ET.SubElement(root, "LINGUISTIC_TYPE", of_type)
    replace_file(output, lambda path: ET.ElementTree(root).write(path, encoding="UTF-8", xml_declaration=True))


def _via(video: Path, output: Path) -> None:
    facts = {"pid": "__VIA_PROJECT_ID__", "rev": "__VIA_PROJECT_REV_ID__"}
    facts |= {"rev_timestamp": "__VIA_PROJECT_REV_TIMESTAMP__", "pname": video.stem}
    facts |= {"creator": "VGG Image Annotator (http://www.robots.ox.ac.uk/~vgg/software/via)"}
    facts |= {"created": round(datetime.now().timestamp() * 1000), "vid_list": ["1"]}
    screen = {"file_content_align": "center", **dict.fromkeys(_VIA_FLAGS, True)}
    screen |= {"spatial_region_label_attribute_id": "", "gtimeline_visible_row_count": "4"}
    config = {"file": {"loc_prefix": dict.fromkeys("1234", "")}, "ui": screen}
    file = {"fid": "1", "fname": video.name, "type": 4, "loc": 3, "src": str(video)}
    project = {"project": facts, "config": config, "attribute": {}, "file": {"1": file}, "metadata": {}}
    replace_text(output, json.dumps(project | {"view": {"1": {"fid_list": ["1"]}}}))

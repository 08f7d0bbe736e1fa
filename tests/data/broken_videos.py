"""Videos that are broken in six ways."""

import shutil
from pathlib import Path

import av

from tests.testing.videos import cut_file, damage_frame, encode_sound, encode_video, make_frames


def write_broken_videos(folder: Path) -> dict[str, Path]:
    """Writes the videos into `folder`; their paths by what is wrong with them."""
    folder.mkdir(parents=True, exist_ok=True)
    broken = {name: folder / f"{name}.mp4" for name in ("empty", "text", "sound", "no_frames")}
    broken["empty"].touch()
    broken["text"].write_text("a story\n" * 100)
    encode_sound(broken["sound"])
    with av.open(str(broken["no_frames"]), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        container.start_encoding()
    # The middle of these two is damaged: the second only shows when it is decoded.
    whole = encode_video(folder / "whole.mp4", make_frames(20, 32, 32), container_options={"movflags": "faststart"})
    broken["truncated"] = Path(cut_file(whole, 0.6))
    broken["damaged"] = Path(damage_frame(whole, 0))
    Path(whole).unlink()
    return broken


def spread_broken_videos(folder: Path, class_folders: list[Path]) -> list[Path]:
    """Writes them to `folder` and moves one after the other into the class folders; their places there."""
    places = []
    for number, path in enumerate(write_broken_videos(folder).values()):
        places.append(class_folders[number % len(class_folders)] / path.name)
        shutil.move(path, places[-1])
    return places

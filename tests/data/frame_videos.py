"""Videos of known segments: bright for a while, then dark, and grey otherwise; and clips of videos without files."""

import numpy as np
import torch

from hf_video.data import FrameTask, VideoDataset, cut_clips
from hf_video.data.frame_labels import AnnotatedVideo
from hf_video.processing import VideoClipProcessor
from tests.testing.videos import encode_video

SECONDS, RATE = 4, 10
SEGMENTS = (("bright", 1, 2), ("dark", 2, 3.5))
LEVELS = {"bright": 230, "dark": 20}


def write_flashes(folder, num_videos, name="times.csv"):
    """Videos 0.mp4, 1.mp4, ... and a file of their segments."""
    levels = np.full(SECONDS * RATE, 120)
    for label, start, end in SEGMENTS:
        levels[int(start * RATE) : int(end * RATE)] = LEVELS[label]
    generator = np.random.default_rng(0)
    for number in range(num_videos):
        noise = generator.integers(-8, 8, (len(levels), 32, 32, 3))
        frames = (levels[:, None, None, None] + noise).astype(np.uint8)
        encode_video(folder / f"{number}.mp4", frames, fps=RATE)
    rows = [f"{number}.mp4,{label},{start},{end}" for number in range(num_videos) for label, start, end in SEGMENTS]
    file = folder / name
    file.write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    return file


def write_points(folder, num_videos, seconds=12):
    """Videos 0.mp4, ... that are bright, or dark, for half a second around instants, and a file of these."""
    generator, rows = np.random.default_rng(0), ["path,time,label"]
    for number in range(num_videos):
        levels = np.full(seconds * RATE, 120)
        for turn, second in enumerate(range(1, seconds - 1, 2)):
            label, begin = ("flash", "blink")[turn % 2], second * RATE + int(generator.integers(RATE))
            levels[begin : begin + 5] = 230 if label == "flash" else 20
            rows.append(f"{number}.mp4,{(begin + 2.5) / RATE},{label}")
        noise = generator.integers(-8, 8, (len(levels), 16, 16, 3))
        encode_video(folder / f"{number}.mp4", (levels[:, None, None, None] + noise).astype(np.uint8), fps=RATE)
    (folder / "points.csv").write_text("\n".join(rows) + "\n")
    return folder / "points.csv"


class BlankTask(FrameTask):
    """Clips of videos that have no files: the brightness of a frame is drawn from its video and its time."""

    def make(self, row, key, training):
        seconds = np.arange(row["num_frames"]) + round(row["start"])
        item = {"pixel_values": blank_frames(row["video"], seconds), "labels": torch.tensor(row["frame_labels"])}
        return item | {"sample_key": key} if training else item


def blank_frames(video, seconds):
    """Frames (t, 3, 16, 16) of such a video at whole seconds."""
    levels = [np.random.default_rng([*video.encode(), second]).normal(size=(3, 1, 1)) for second in seconds]
    return torch.from_numpy(np.array(levels)).float().expand(-1, -1, 16, 16)


def blank_clips(lengths, num_frames, segments=None, training=True, **options):
    """Clips of videos with so many frames, one a second. By default the two classes take turns of three seconds."""
    processor = VideoClipProcessor(num_frames=num_frames, size={"height": 16, "width": 16}, do_center_crop=False)
    videos = []
    for number, length in enumerate(lengths):
        starts, ends = np.array(segments or [(at, at + 3) for at in range(0, length, 3)], float).T
        labels = [[turn % 2] for turn in range(len(starts))]
        videos.append(AnnotatedVideo({"video": f"{number}.mp4"}, starts, ends, labels, [(0.0, float(length))]))
    rows = cut_clips(videos, processor, ["a", "b"], fps=1, tubelet_size=1, **options)
    return VideoDataset(rows, BlankTask(processor, ["a", "b"], fps=1), training=training)

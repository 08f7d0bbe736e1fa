"""Small videos with annotated persons."""

from tests.testing.videos import encode_video, make_frames

OWN = """video,second,x1,y1,x2,y2,action,person
a.mp4,1,0.1,0.2,0.5,0.9,walk,1
a.mp4,1,0.1,0.2,0.5,0.9,"talk, loudly",1
a.mp4,1,0.6,0.2,0.9,0.9,,2
a.mp4,1.5,0.0,0.0,1.0,1.0,walk,1
b.mp4,0,0.25,0.5,0.75,1.0,turn left,1
"""
AVA = """a,0901,0.1,0.2,0.5,0.9,3,1
a,0901,0.1,0.2,0.5,0.9,1,1
a,0902,0.6,0.2,0.9,0.9,3,2
b,0900,0.25,0.5,0.75,1.0,2,1
"""
LABEL_MAP = """label {
  name: "walk"
  label_id: 1
  label_type: PERSON_MOVEMENT
}
item { name: "watch (e.g., \\"TV\\")" id: 3 }
"""


def write_videos(folder):
    """a.mp4 has 90 frames of 48 x 64 pixels at 30 frames per second, b.mp4 30 of 40 x 40 at 15."""
    encode_video(folder / "a.mp4", make_frames(90))
    encode_video(folder / "b.mp4", make_frames(30, 40, 40), fps=15)
    return folder


def write_annotations(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return folder

"""Choose the stretches of videos to label next: where the model is uncertain, and the video is unlike what is labelled
or chosen already. They are written as events of the class "to label" in a file of your annotation tool. Replace the
class by what you see; what you leave stays unknown to `hf-video train`. Then train again.

VIDEO is a file, a URL, a folder of frames, a folder with videos inside, a list of videos, or a data set. No two
stretches lie beside each other, and none where --annotations has a label. If the model has a background, time
without a row counts as labelled, as in its training.

The file has the classes of the model for you to choose from (BORIS, VIA 3). With --annotations of the same tool it is
a copy of your project, with the stretches beside what you annotated.

example: hf-video suggest my_videos --model my_frames --annotations project.boris --output next.boris
"""

from hf_video.inference.inference_settings import SuggestSettings
from hf_video.texts import clock, count

from .command import command
from .printing import print_failed


@command(help="choose what to label next")
def run(settings: SuggestSettings) -> int:
    """Prints the stretches, the most useful one first, and the videos that failed."""
    from hf_video.inference.suggestion import suggest

    failed: list[tuple[str, object]] = []
    stretches = suggest(settings, lambda video, error: failed.append((video, error)))
    print(f"{'from':9}  {'to':9}  uncertain")
    for each in stretches:
        print(f"{clock(each.start, 1)}  {clock(each.end, 1)}  {each.uncertainty:9.1%}  {each.video}")
    print(f"{settings.output} has {count(len(stretches), 'event')} to label")
    return print_failed(failed, len(failed) + len({each.video for each in stretches}))

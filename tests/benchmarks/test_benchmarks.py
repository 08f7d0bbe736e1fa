"""Every script of `benchmarks/` runs as a program on small inputs, prints its figures, and none for wrong outputs."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import HF_VIDEO_IMPORTS, Program, run_forked

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
SKIPPED = 77
RATIO = re.compile(r"\dx\b|times (ours|as long)|bare loop|ratio \d|^ratio \|", re.MULTILINE)
# What has to stand on lines of the output.
FIGURES = {
    "action_detection.py": [
        r"2 steps of 32 videos in \d+\.\d minutes",
        *(
            rf"{order}{way}: mean average precision \d\.\d{{3}}"
            for order in ("frames in order", "shuffled frames")
            for way in ("", ", with annotated boxes", ", class-blind")
        ),
    ],
    "alternatives.py": [
        r"VideoMamba: Transformers alone no, hf_video yes",
        r"16 frames of a clip of 5, webm: Transformers alone .*, hf_video 16 frames",
        r"mmcv for this Python: not asked",
    ],
    "before_and_after.py": [
        rf"{job}: (\d+\.\d{{3}}); \d+\.\d\d s at HEAD, \d+\.\d\d s here; pairs \1 \(\d+ s\)"
        for job in ("uniform_reading",)
    ],
    "bulk.py": [
        r"without --engine ray \(",
        r"  plain loop +\d+\.\d +-?\d+\.\d",
        r"  local +\d+\.\d .*ratio -?\d+\.\d{3}",
    ],
    "explain.py": [
        r"  deletion: explain \d\.\d{3}, random \d\.\d{3}, Gaussian \d\.\d{3}",
        r"  insertion: explain \d\.\d{3}, random \d\.\d{3}, Gaussian \d\.\d{3}",
        r"    better than Gaussian by -?\d\.\d{3} \+- \d\.\d{3}",
        r"  on the digit's box: \d+\.\d% of the map, \d+\.\d% of the area; wanted: 60%",
        r"  random weights: \d+\.\d% on the digit's box, rank correlation [+-]\d\.\d\d",
    ],
    "chunk_length.py": [
        r"motions, seed 0: right clips of 8, by the frames of a chunk",
        r"events, seed 0: right frames of \d+, by the frames of a chunk",
        *(rf"  {way} +(\d+\.\d% *){{3,4}}" for way in ("each chunk alone", "state of 8 frames, through")),
        r"  state of the video, beside +(\d+\.\d% *){3}",
    ],
    "exported.py": [
        rf"{name} +2 frames: ONNX Runtime \d+ ms, PyTorch \d+ ms, \d+\.\d\dx; graph -?\d+ KiB, export \d+ s"
        for name in ("VideoViT", "VideoMamba")
    ],
    "extract.py": [
        r"200 windows: the last 20 took \d\.\d+ of the processor time .* MiB, then \d+ MiB",
        r"key frame every 250 frames, milliseconds a window:",
        r"key frame every second, [\s\S]*faster +\d+\.\d\dx +\d+\.\d\dx",
    ],
    "frame_labels.py": [
        *(
            rf"  {name}: \d+ segments, .* F1 \d\.\d{{3}}, border error \S+ s; model \d+\.\d\d ms"
            for name in ("windows, stride 2", "frames, delay 0", "frames, delay 2")
        ),
        r"  frames against windows: F1 [+-]\d\.\d{3}, wanted: 0 or more",
    ],
    "gradient_checkpointing.py": [
        *(
            rf"{name} +{kind} +batch +\d+ +\d+ MiB"
            for name in ("VideoViT", "VideoMamba")
            for kind in ("without", "with")
        ),
        r"ratio \| VideoMamba, gradient checkpointing \| memory \| peer without",
        r"VideoMamba, 1 epochs of the digits: \d+\.\d% without, \d+\.\d% with, .* differ by \d",
    ],
    "cpu_choices.py": [
        *(
            rf"{dtype} +{passes} +as chosen: products=\w+,mixer=\w+ +\d+\.\d\d s"
            for dtype in ("float32", "bfloat16")
            for passes in ("forward", r"forward\+backward")
        ),
        r"ratio \| forward, bfloat16, as chosen \| time \| peer the fastest forced way \| \d+\.\d{3}",
    ],
    "imbalance.py": [
        rf"{cure} +\d+\.\d% ± \d+\.\d%( +\d+\.\d% ± \d+\.\d%){{3}}"
        for cure in ("none", "--class-weights effective", "--loss focal", "--sampler sqrt")
    ],
    "importing.py": [r"hf-video --help +\d+\.\d\d s", r"with hf_video / without: \d+\.\d\dx"],
    "int8.py": [
        r"videovit, 1 layers: .*",
        *(rf"  {name}(, compiled)? +\d+\.\d +\d+\.\d\dx" for name in ("float32", "bfloat16", "dynamic", "weights")),
        r"parts of dynamic: products \d+\.\d, quantisation \d+\.\d",
        r"  dynamic all, compiled ",
    ],
    "live.py": [
        r"a tubelet: \d+\.\d\d ms in the first 40, .*; in turns [+-]\d+\.\d%",
        r"memory: \d+ MiB after a tenth, \d+ MiB at the end",
        r"chunks of 2 and of 100 frames differ by \d\.\de-\d\d",
    ],
    "memory_bank.py": [
        r"Q-Former, a frame: kept \d+ ms, computed \d+ ms, \d+\.\dx",
        r"vision tower takes \d+%",
        r"peak memory \d+ MiB, then \d+ MiB",
    ],
    "packed_reading.py": [
        r"\d+ clips are equal; .* median of \d+ rounds",
        r"  pack +\d+\.\d clips/s",
        r"  pack to files: ratio \d\.\d{3}",
        r"  the SHA-256 takes \d+\.\d\d ms a clip, \d+\.\d% of reading it",
        r"index of 1,000 rows, \d+ MiB: listed in \d+\.\d s",
        r"  its rows take \d+\.\d\d GiB, peak memory \d+\.\d\d GiB, \d+\.\d\d ms to look up a row",
    ],
    "people_walking.py": [rf"{part} seconds: \d+\.\d% of 24 clips are right" for part in ("seen", "unseen")],
    "predict_start.py": [
        r"VideoViT, hf-video predict +\d+\.\d\d s",
        r"no such model +\d+\.\d\d s",
        r"kernels compiled, by part\n( {2}\w.* \d+\.\d\d s\n)+",
    ],
    "range_reads.py": [
        rf"{name} +\d+ +\d+\.\d% +\d+\.\d\d +\d+\.\d\d +\d+\.\dx" for name in ("dense", "uniform")
    ],
    "reading.py": [r"hf_video +\d+ +1\.00 +\d+ +1\.00", r"transformers, pyav +\d+ +\d+\.\d\d +\d+ +\d+\.\d\d"],
    "run_length_tokens.py": [
        r"static camera: 12% of the tokens kept, .* ratio \d\.\d{3}",
        r"every patch changes: 100% of the tokens kept, .* ratio \d\.\d{3}",
    ],
    "scale_plan.py": [
        r"\| 5 min, by ranges \| uniform \| \d+ \| \d+\.\d\d \| \d+\.\d\d \| \d+\.\d \| 2\.4 \|",
        r"\| packing, with reading back \| \d+ \| MB a core second \|",
        r"\*\*100,000,000 clips, features once\*\*, one machine, 8 GPUs of 1500 clips/s",
        r"\| fill the driver of Ray \| [\d,]+ \|",
    ],
    "search.py": [
        r"300 clips, a fresh command:",
        *(rf"  {step} +\d+\.\d ms, least \d+\.\d" for step in ("loading", "encoding", "search", "whole process")),
        *(rf"re-ranking of 4 clips, {how}: \d+\.\d\d s" for how in ("stored tokens", "clips read again")),
        r"  without the network: \d+\.\d ms a clip",
    ],
    "self_test.py": [
        r"  float32 +\d\.\de-\d\d  \d+e-\d\d",
        r"30 honest runs, 0 of them reported\n",
        r"  a tensor off by 1 % +files +outputs +weights, logits",
        r"VideoViT-0: of 20 faults are found by files \d+, outputs \d+, either 20",
    ],
    "small_data.py": [
        r"people, motion: 2 training and 3 test clips of walks left, walks right, nobody",
        r"  from the start, seed 0: \d+\.\d% in \d+ s, \d+ s of processors",
        r"from random weights +\d+\.\d% ",
    ],
    "startup.py": [
        r"manifest of 64 videos: \d+\.\d s",
        r"  list the videos +\d+\.\d s",
        r"  check the videos +\d+\.\d s",
        r"  first step +\d+\.\d s",
        r"first step of 64 videos: \d+\.\d s after the start, peak memory \d+\.\d\d GiB",
    ],
    "streams.py": [
        r"epoch 0: 160 clips trained on 1 times\nepoch 1: 160 clips trained on 1 times",
        r"largest difference of a loss: 0 over 16 steps",
        r"peak memory of a process: stream \d+ MiB, data set in memory \d+ MiB",
    ],
    "structure.py": [
        r"package +\d+ files",
        r"travels with its processor +\d+ files",
        r"code +\d+ files",
        r"layers +\d+",
        r"settings declared twice +\d+",
        r"without a guard +\d+",
    ],
    "timeline.py": [
        r"hf-video timeline --background background --min-duration-on \d\.\d --min-duration-off \d\.\d; a window is",
        r"  \d+ segments found, \d+ events; F1 \d\.\d{3} \(precision \d\.\d{3}, recall \d\.\d{3}\)",
        r"  mean average precision at 0\.3, 0\.4, 0\.5, 0\.6, 0\.7:( \d\.\d{3}){5}, mean \d\.\d{3}",
        r"  border error: median .* windows, 90% below .* windows",
        r"F1 at temporal IoU 0\.5: mean \d\.\d{3}, lowest \d\.\d{3}; wanted: 0\.95",
    ],
    "training.py": [
        *(rf"processes: {number}; VideoTrainer \d+\.\d clips/s, bare loop .*%" for number in (1, 2)),
        r"  VideoTrainer: \d+\.\d\dx the clips/s of processes: 1",
        r"  bare loop: \d+\.\d\dx the clips/s of processes: 1",
        r"waiting for data, two workers: \d+\.\d%",
    ],
    "triton_assembly.py": [r"scan_forward_kernel .* registers \d+, .* instructions +\d+\.\d"],
    "stmixer.py": [
        *(
            rf"{part}: forward \d+\.\d\d s and -?\d+\.\d\d GiB, forward and backward \d+\.\d\d s and -?\d+\.\d\d GiB"
            for part in ("backbone", "detector")
        ),
        *(
            rf"{part}: forward \d+\.\d\d s, forward and backward \d+\.\d\d s; \d+ % and \d+ % of the decoder layers"
            for part in ("sampling", "mixing")
        ),
    ],
    "video_text.py": [
        r"4 steps of 64 videos in \d+\.\d minutes",
        *(
            rf"{frames}, {way}"
            for frames in ("frames in order", "shuffled frames")
            for way in (r"dual: text_to_video_r1 \d", r"re-ranked: text_to_video_r1 \d", r"motions as classes: \d")
        ),
    ],
    "videomamba_cpu.py": [
        r"one scan, Transformers, eager +\d+\.\d ms",
        r"forward .* model .* products .*x",
        r"forward\+backward +bfloat16 +model .* products .* updates +\d+\.\d\d s +\d+\.\d\dx",
        r"on Transformers' eager scan",
        r"forward\+backward .* without the fused mixer +\d+\.\d\dx  without PyTorch's threads",
        r"autocast +relative error of the logits .*, without the fused mixer",
        r"forward\+backward +bfloat16 +\d+\.\d\d s .*x bfloat16 products .*x float32",
        r"videomamba-bfloat16 +2 frames .* GiB",
        r"GiB  without the fused mixer",
        r"without vectors +\d+\.\d\dx",
    ],
    "videomamba_lengths.py": [
        r"videovit +forward\+backward .* GiB",
        r"videomamba +with gradient checkpointing +4 frames .* s .* GiB",
        r"2 to 4 frames: time \d+\.\dx, memory \d+\.\dx",
        r"ratio \| VideoMamba-M, forward, 4 frames \| memory \| peer VideoViT-B \| \d+\.\d{3}",
        r"forward\+backward, at equal numbers of tokens: VideoMamba-M is .*",
    ],
    "videovit.py": [rf"{dtype} +forward(\+backward)? .*x .* vs \d+\.\d\d" for dtype in ("float32", "bfloat16")],
    "waiting.py": [r"threads off +waiting for data: +\d+\.\d% of", r"threads on +waiting for data: +\d+\.\d% of"],
    "watch.py": [r"frames a second: \d+", r"speed: [+-]\d+\.\d%", r"memory: [+-]\d+\.\d%"],
    "what_it_saw.py": [r"\d+ events, \d+ segments; picture of \d+ KiB", r"answer for \d+\.\d to \d+\.\d s: \w+"],
}
# What makes the outputs wrong that a script compares before it prints how the times compare.
DRIFT = """
import itertools, torch
calls, linear = itertools.count(), torch.nn.Linear.forward
torch.nn.Linear.forward = lambda self, x: linear(self, x) * (1 + 0.1 * next(calls))
"""
WRONG_OUTPUTS = {
    "bulk.py": "import numpy; load = numpy.load; numpy.load = lambda *words: load(*words) + 1",
    "cpu_choices.py": DRIFT,
    "exported.py": "import onnxruntime as o; run = o.InferenceSession.run; o.InferenceSession.run = "
    "lambda *words: [each + 1 for each in run(*words)]",
    "extract.py": DRIFT,
    "gradient_checkpointing.py": DRIFT,
    "int8.py": DRIFT,
    "run_length_tokens.py": DRIFT,
    "importing.py": "import os; os.environ['PYTHONPATH'] = '/nowhere'; os.environ['PYTHONHOME'] = '/nowhere'",
    "memory_bank.py": DRIFT,
    "packed_reading.py": "import hf_video.data.clip_making as c; read = c.read_video; c.read_video = "
    "lambda video, *a, **b: (read(video, *a, **b)[0] + (not isinstance(video, str)), None)",
    "predict_start.py": "import os; os.environ['PYTHONPATH'] = '/nowhere'; os.environ['PYTHONHOME'] = '/nowhere'",
    "range_reads.py": "import hf_video.reading as p; read = p.read_video; "
    "p.read_video = lambda *words: (read(*words)[0] + str(words[0]).startswith('http'), None)",
    "reading.py": "import hf_video.reading as p; read = p.read_video; "
    "p.read_video = lambda *words: (read(*words)[0] + 1, None)",
    "training.py": DRIFT,
    "videomamba_cpu.py": DRIFT,
    "videomamba_lengths.py": DRIFT,
    "videovit.py": DRIFT,
    "waiting.py": DRIFT,
}


def run_script(script: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a script as `python SCRIPT WORD...` does, after the statements `before`."""
    threads = ["--threads", "1"] if '"--threads"' in script.read_text() else []
    program = [str(script), *words, *threads]
    if before:
        start = f"import runpy, sys; sys.path[0] = {str(FOLDER)!r}; sys.argv = {program}"
        program = ["-c", f"{before}\n{start}\nrunpy.run_path(sys.argv[0], run_name='__main__')"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return run_forked(Program(program, environment), timeout=300, imports=HF_VIDEO_IMPORTS)[0]


# The quick suite leaves out scripts of which the smallest inputs take two seconds or more, and reads their help. With
# wrong outputs it runs scripts as far as their comparison, below.
LONG = (
    *("action_detection.py", "alternatives.py", "before_and_after.py", "chunk_length.py", "explain.py"),
    *("frame_labels.py", "imbalance.py", "people_walking.py", "scale_plan.py", "search.py"),
    *("self_test.py", "small_data.py", "startup.py", "streams.py", "structure.py"),
    *("timeline.py", "video_text.py"),
)
SLOW = {*WRONG_OUTPUTS, *LONG}


@pytest.mark.parametrize(
    "script",
    [pytest.param(each, id=each.name, marks=pytest.mark.slow if each.name in SLOW else []) for each in SCRIPTS],
)
def test_it_prints_its_figures(script):
    completed = run_script(script, "--smoke")
    if completed.returncode == SKIPPED:
        if script.name == "before_and_after.py":
            assert not (FOLDER.parent / ".git").exists() and "no git history" in completed.stderr
        else:
            assert script.name not in FIGURES and "GPU" in completed.stderr
        return
    assert completed.returncode == 0, completed.stderr
    for figure in FIGURES[script.name]:
        assert re.search(figure, completed.stdout), f"{figure} is missing in:\n{completed.stdout}"
    assert script.name in WRONG_OUTPUTS or not RATIO.search(completed.stdout)


def test_a_training_with_run_length_tokens_prints_its_figures():
    completed = run_script(FOLDER / "run_length_tokens.py", "--training", "--smoke")
    assert completed.returncode == 0, completed.stderr
    assert re.search(r"share of a training: .* ratio \d\.\d{3}.* mean accuracy \d", completed.stdout)


# Of those in which the same goes wrong, with longer trainings and models.
LONG_WRONG = ("int8.py", "training.py", "videomamba_lengths.py", "waiting.py")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG_WRONG else []) for name in WRONG_OUTPUTS]
)
def test_it_prints_no_ratio_for_wrong_outputs(name):
    completed = run_script(FOLDER / name, "--smoke", before=WRONG_OUTPUTS[name])
    assert completed.returncode not in (0, SKIPPED)
    # The statements before the script found what they change.
    assert "AttributeError" not in completed.stderr
    assert not RATIO.search(completed.stdout), completed.stdout


# Prints what each script does with `--help`: its exit code, and its output.
HELPS = """
import contextlib, io, json, runpy, sys
said = {}
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    sys.path[0] = script.rpartition("/")[0]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            said[script] = end.code, output.getvalue()
print(json.dumps(said))
"""


def test_their_helps_say_what_they_measure_and_how_long_it_takes():
    program = Program(["-c", HELPS, *map(str, SCRIPTS)], os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    completed = run_forked(program, timeout=300, imports=HF_VIDEO_IMPORTS)[0]
    assert completed.returncode == 0, completed.stderr
    said = json.loads(completed.stdout)
    for script in SCRIPTS:
        code, text = said[str(script)]
        assert code in (0, None), script.name
        assert "--smoke" in text and f"python benchmarks/{script.name}" in text, script.name
        assert re.search(r"\b(second|minute)s?\b", text), script.name

"""The small command of each task that is evaluated, one after another: `small_commands.py DATA OUT WORD...`."""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from hf_video.cli.main import main
from tests.testing.small_tasks import small_commands

if __name__ == "__main__":
    data, out, *more = sys.argv[1:]
    commands = small_commands(Path(data))
    del commands["pretraining"]
    codes = [main([*words, f"--output-dir={Path(out, name)}", *more]) for name, words in commands.items()]
    if dist.is_initialized():
        dist.destroy_process_group()
    # A thread of PyTorch's process groups that is late may abort the process while the interpreter is torn down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(max(codes))

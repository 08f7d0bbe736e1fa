"""`hf-video` in one of several processes, which may share the weights of the model: `sharded_command.py WORD...`.

Accelerate shards on accelerators alone, although FSDP2 itself runs on CPUs as well. Here it takes CPUs for them.
"""

import os
import sys

import torch.distributed as dist
from accelerate import DistributedType, PartialState

from hf_video.cli.main import main

_begin = PartialState.__init__


def _begin_as_on_accelerators(self, *args, **options):
    _begin(self, *args, **options)
    if "ACCELERATE_USE_FSDP" in os.environ and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    PartialState.__init__ = _begin_as_on_accelerators
    code = main(sys.argv[1:])
    if dist.is_initialized():
        dist.destroy_process_group()
    # A thread of PyTorch's process groups that is late may abort the process while the interpreter is torn down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

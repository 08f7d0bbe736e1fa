"""A command that is killed while it writes: `killed_command.py FOLDER STOP WORD...`.

STOP is one JSON object: the signal that comes as the third change is made under FOLDER, such as `{"signal": "SIGKILL",
"moment": 3}`; `{"limit": 4000}` if no file may grow beyond that many bytes, as if a disk was full; or `{}`. The number
of changes goes into the file FOLDER.changes.
"""

import json
import os
import resource
import signal
import sys

from hf_video.cli.main import main

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Of `sys.addaudithook`, with the places of their paths.
EVENTS = {"open": [0], "os.rename": [0, 1], "os.mkdir": [0], "os.rmdir": [0], "os.remove": [0]}


def watch(folder, stop):
    count, changes = 0, os.open(f"{folder}.changes", os.O_WRONLY | os.O_CREAT)

    def hook(event, arguments):
        nonlocal count
        if event not in EVENTS or (event == "open" and not (arguments[2] or 0) & WRITING):
            return
        paths = [arguments[place] for place in EVENTS[event]]
        if not any(isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder) for path in paths):
            return
        count += 1
        os.pwrite(changes, str(count).encode(), 0)
        if count == stop.get("moment"):
            os.kill(os.getpid(), getattr(signal, stop["signal"]))

    # Who starts the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(hook)
    if "limit" in stop:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (stop["limit"], resource.RLIM_INFINITY))


watch(sys.argv[1], json.loads(sys.argv[2]))
sys.exit(main(sys.argv[3:]))

"""Commands that are killed while they write.

A case is one JSON object a line on stdin: the `words` of a command, the `folder` it writes into, and what is to `stop`
it, one of

    {}                                     nothing
    {"signal": "SIGKILL", "moment": 3}     the signal, as the third change is made under `folder`
    {"limit": 4000}                        no file may grow beyond that many bytes, as if a disk was full

Its result is one JSON object a line: exit status as of `subprocess`, what was said on stderr, and how many changes
were begun. Each runs in a process forked off this one, which has imported everything before.
"""

import importlib
import json
import os
import resource
import signal
import sys
import traceback

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Of `sys.addaudithook`, with the places of their paths.
EVENTS = {"open": [0], "os.rename": [0, 1], "os.mkdir": [0], "os.rmdir": [0], "os.remove": [0]}


def watch(folder, stop, moments):
    """Counts the changes under a folder into the file `moments`, and sends the signal at the one in `stop`."""
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event not in EVENTS or (event == "open" and not (arguments[2] or 0) & WRITING):
            return
        paths = [arguments[place] for place in EVENTS[event]]
        if not any(isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder) for path in paths):
            return
        count += 1
        os.pwrite(moments, str(count).encode(), 0)
        if count == stop.get("moment"):
            os.kill(os.getpid(), getattr(signal, stop["signal"]))

    # Who starts the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(hook)
    if "limit" in stop:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (stop["limit"], resource.RLIM_INFINITY))


def work(case):
    from hf_video.cli.main import main
    from hf_video.jobs import feature_cache

    feature_cache.SHARD_SIZE = 4
    return main(case["words"])


def run(case):
    reading, writing = os.pipe()
    moments = os.memfd_create("moments")
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.close(writing)
            watch(case["folder"], case["stop"], moments)
            code = work(case)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(process, 0)
    changes = int(os.pread(moments, 20, 0) or 0)
    os.close(moments)
    return {"status": os.waitstatus_to_exitcode(status), "stderr": said, "changes": changes}


def main():
    for module in ("hf_video.conversion.videomae", "hf_video.cli.main", "hf_video.training.adaptation"):
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

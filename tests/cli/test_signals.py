"""What signals do to a command: they end it at once, or a long one after what it is at, with what it has."""

import contextlib
import multiprocessing
import signal
import threading
import time

import pytest

from hf_video.cli.signals import end_process, stop_requests


def test_ctrl_c_is_a_line_and_code_130(ends):
    assert ends(KeyboardInterrupt("All is kept.")) == (130, "\nhf-video: interrupted. All is kept.\n")


@pytest.mark.parametrize("rewrites", [True, False])
def test_sigterm_is_as_ctrl_c_with_code_143(rewrites, ends):
    def body():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            if rewrites:
                raise KeyboardInterrupt("All is kept.") from None
            raise

    assert ends(body) == (143, f"\nhf-video: terminated.{' All is kept.' if rewrites else ''}\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("number", "end"), [(signal.SIGINT, (130, "interrupted")), (signal.SIGTERM, (143, "terminated"))]
)
def test_a_signal_that_a_library_makes_another_error_of_is_no_bug(number, end, heard_ctrl_c, ends):
    """As of an import that is interrupted: what it left half done fails later, with an error of its own."""

    def body():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise ImportError("cannot load module more than once per process")

    assert ends(body) == (end[0], f"\nhf-video: {end[1]}.\n")
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_of_the_processes_of_a_launcher_the_first_one_says_that_a_signal_came(ends, monkeypatch):
    for rank, said in {"0": "\nhf-video: terminated.\n", "1": ""}.items():
        monkeypatch.setenv("RANK", rank)
        assert ends(lambda: signal.raise_signal(signal.SIGTERM)) == (143, said)


def test_sigterm_ends_a_forked_worker_as_ever(ends):
    codes, fork = [], multiprocessing.get_context("fork")

    def work(is_ready):
        is_ready.set()
        time.sleep(60)

    def body():
        worker = fork.Process(target=work, args=(is_ready := fork.Event(),))
        worker.start()
        is_ready.wait()
        worker.terminate()
        worker.join()
        codes.append(worker.exitcode)

    assert ends(body)[0] == 0
    assert codes == [-signal.SIGTERM]


def test_a_second_signal_interrupts_and_an_ignored_one_is_none():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests("stopping") as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert not stopped
            signal.raise_signal(signal.SIGTERM)
            assert stopped
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_stream_that_is_silent_does_not_keep_the_process(monkeypatch):
    was_closed, codes = threading.Event(), list[int]()
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("hf_video.cli.signals.LONGEST_END", 0.1)

    def frames():
        yield 0
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        was_closed.wait(60)

    begin = time.monotonic()
    try:
        with stop_requests("stopping") as stopped:
            assert list(stopped.until_stopped(frames())) == [0]
        assert time.monotonic() - begin < 30
        end_process(130)
        assert codes == [130]
    finally:
        was_closed.set()
    # A process whose threads have ended ends as any other.
    for thread in threading.enumerate():
        if thread.name.startswith("making-items"):
            thread.join(20)
    end_process(130)
    assert codes == [130]


def test_items_that_fail_and_those_that_nobody_wants_end_their_thread():
    was_closed = []

    def frames():
        try:
            yield from range(3)
            raise ValueError("damaged")
        finally:
            was_closed.append(True)

    with stop_requests("stopping") as stopped:
        with pytest.raises(ValueError, match="damaged"):
            list(stopped.until_stopped(frames()))
        for frame in stopped.until_stopped(frames()):
            if frame == 1:
                break
    assert was_closed == [True, True]

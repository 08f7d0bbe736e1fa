"""A camera that sends H.264 by RTSP, its packets between the answers on one TCP connection."""

import re
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from fractions import Fraction

import av

SDP = """v=0
o=- 0 0 IN IP4 127.0.0.1
s=camera
c=IN IP4 127.0.0.1
t=0 0
m=video 0 RTP/AVP 96
a=rtpmap:96 H264/90000
a=fmtp:96 packetization-mode=1
a=control:video
""".replace("\n", "\r\n")
ANSWERS = {
    "OPTIONS": "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n\r\n",
    "DESCRIBE": f"Content-Type: application/sdp\r\nContent-Length: {len(SDP)}\r\n\r\n{SDP}",
    "SETUP": "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n\r\n",
}


class _Packets(list):
    """What FFmpeg writes: a packet of RTP or RTCP each time."""

    write = list.append


def encode_packets(frames, fps):
    """The packets of each frame (height, width, 3) uint8."""
    packets, pieces = _Packets(), []
    with av.open(packets, "w", format="rtp", options={"packetsize": "1200"}) as container:
        stream = container.add_stream("libx264", rate=fps, options={"preset": "ultrafast", "tune": "zerolatency"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(picture))
            pieces.append([bytes(packet) for packet in packets])
            packets.clear()
    return pieces


@contextmanager
def rtsp_camera(frames, fps, then_wait=False):
    """Sends the frames to whoever asks for them by TCP, each at its time; gives the address."""
    pieces, finished = encode_packets(frames, fps), threading.Event()

    def serve(connection):
        received = connection.makefile("rb")
        while request := "".join(iter(lambda: received.readline().decode().strip("\n"), "\r")):
            method, number = request.split()[0], re.search(r"CSeq: (\d+)", request)[1]
            answer = ANSWERS.get(method, "Session: 1\r\n\r\n")
            connection.sendall(f"RTSP/1.0 200 OK\r\nCSeq: {number}\r\n{answer}".encode())
            if method == "PLAY":
                break
        begin = time.monotonic()
        for number, packets in enumerate(pieces):
            finished.wait(max(begin + number / fps - time.monotonic(), 0))
            for packet in packets:
                # Types of RTCP are from 200.
                connection.sendall(struct.pack("!cBH", b"$", packet[1] >= 200, len(packet)) + packet)
        if then_wait:
            finished.wait(30)

    def listen():
        with suppress(OSError), server.accept()[0] as connection:
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=listen, daemon=True).start()
        yield f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
        finished.set()

"""A client that believes nothing: it reads its own bytes as frames, and ours, and says which promise was broken.

It knows RFC 9113 by itself: nothing of the transport is in it. What the client sends may be any bytes; what it gets
must be whole frames in an order that makes sense, within the windows that it opened.
"""

import struct
from typing import Final

from hpack import Decoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST: Final = 2**31 - 1

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8


class Client:
    """Both directions of one connection."""

    def __init__(self) -> None:
        self.window = 65_535
        self.initial = 65_535
        self.windows: dict[int, int] = {}
        """Of each stream that it opened, as far as it is one."""
        self.ended: dict[int, str] = {}
        """Streams that we ended, each with its grpc-status; empty when they were reset."""
        self.codes: list[int] = []
        """Of the GOAWAYs that came."""
        self.reset: set[int] = set()
        """Streams that the client reset."""
        self._sent = b""
        self._greeted = False
        self._shrunk = 0
        self._largest = self._most = 16_384
        self._begun: set[int] = set()
        self._settings = self._pings = 0
        self._announced = 0
        self._tables: list[int] = []
        """The header tables of its settings that are not acknowledged yet."""
        self._must_shrink = False
        self._decoder = Decoder()

    def border(self, data: bytes) -> int:
        """How many of these bytes there are to the end of the frame that they are in."""
        have = len(self._sent)
        if not self._greeted:
            return max(1, len(PREFACE) - have)
        head = (self._sent + data)[:9]
        if len(head) < 9:
            return len(data)
        return 9 + int.from_bytes(head[:3], "big") - have

    def say(self, piece: bytes) -> None:
        """These bytes are sent; what comes until the next ones is the answer to them and those before."""
        self._shrunk = 0
        self._most = self._largest
        self._sent += piece
        if not self._greeted and self._sent.startswith(PREFACE):
            self._greeted = True
            self._sent = self._sent[len(PREFACE) :]
        while self._greeted and len(self._sent) >= 9:
            end = 9 + int.from_bytes(self._sent[:3], "big")
            if len(self._sent) < end:
                return
            head, payload, self._sent = self._sent[:9], self._sent[9:end], self._sent[end:]
            self._said(head[3], head[4], int.from_bytes(head[5:], "big") & MOST, payload)

    def _said(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        match kind:
            case 1 if number % 2 and number > max(self.windows, default=0):
                self.windows[number] = self.initial
            case 3 if len(payload) == 4:
                self.reset.add(number)
            case 4 if not flags & 1 and len(payload) % 6 == 0:
                self._settings += 1
                self._tables.append(4096)
                for name, value in struct.iter_unpack(">HL", payload):
                    self._set(name, value)
            case 6 if not flags & 1:
                self._pings += 1
            case 8 if len(payload) == 4:
                increment = int.from_bytes(payload, "big") & MOST
                if not number:
                    self.window += increment
                elif number in self.windows:
                    self.windows[number] += increment

    def _set(self, name: int, value: int) -> None:
        if name == 4 and value <= MOST:
            change = value - self.initial
            self.initial = value
            self._shrunk += max(0, -change)
            for number in self.windows:
                self.windows[number] += change
        if name == 1:
            self._tables[-1] = min(self._tables[-1], value)
        if name == 5:
            self._largest = value
            self._most = max(self._most, value)

    def hear(self, out: bytes) -> None:
        """What came; AssertionError when it may not."""
        if out.startswith(b"HTTP/1.1 400 ") and not self._announced:
            assert out.endswith((b"This port speaks gRPC over HTTP/2.\n", b"content-length: 35\r\n\r\n")), out
            self.codes.append(13)
            return
        while out:
            assert len(out) >= 9, out
            end = 9 + int.from_bytes(out[:3], "big")
            assert len(out) >= end, out
            assert not any(self.codes), "after the end of the connection"
            kind, flags, number = out[3], out[4], int.from_bytes(out[5:9], "big")
            assert self._announced or kind in {SETTINGS, GOAWAY}, "the first frame is not SETTINGS"
            self._heard(kind, flags, number, out[9:end])
            out = out[end:]

    def _heard(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        match kind:
            case 0 | 1:
                self._heard_on(kind, flags, number, payload)
            case 3:
                assert number, "RST_STREAM of the connection"
                assert len(payload) == 4, payload
                if number in self.windows:
                    self.ended.setdefault(number, "")
            case 4 if flags & 1:
                self._settings -= 1
                assert self._settings >= 0, "an acknowledgement of nothing"
                self._must_shrink |= self._tables.pop(0) < 4096
            case 4:
                self._announced += 1
                assert self._announced <= 2, "SETTINGS again and again"
            case 6 if flags & 1:
                self._pings -= 1
                assert self._pings >= 0, "a PING comes back that was not sent"
            case 6:
                assert len(payload) == 8, payload
            case 7:
                assert number == 0, number
                self.codes.append(int.from_bytes(payload[4:8], "big"))
            case 8:
                assert 0 < int.from_bytes(payload, "big") <= MOST, payload
            case _:
                raise AssertionError(f"a frame of kind {kind}")

    def _heard_on(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        assert number in self.windows, f"stream {number} was never opened"
        assert number not in self.ended, f"stream {number} has ended"
        ends = bool(flags & 1)
        if kind == HEADERS:
            assert flags & 4, "a block in pieces"
            assert payload[0] & 0xE0 == 0x20 or not self._must_shrink, "the header table does not shrink"
            self._must_shrink = False
            fields = dict(self._decoder.decode(payload, raw=True))
            if number not in self._begun:
                assert fields[b":status"] in {b"200", b"405", b"415"}, fields
                self._begun.add(number)
            else:
                assert ends, "a second block does not end the stream"
            if ends:
                self.ended[number] = fields[b"grpc-status"].decode() if fields.get(b":status") != b"405" else "none"
            return
        assert number in self._begun, "DATA before HEADERS"
        assert len(payload) <= self._most, f"a frame of {len(payload)} bytes"
        self.window -= len(payload)
        self.windows[number] -= len(payload)
        if payload:
            assert self.window >= 0, f"{-self.window} bytes over the window of the connection"
            assert self.windows[number] + self._shrunk >= 0, (
                f"{-self.windows[number]} bytes over that of stream {number}"
            )
        if ends:
            self.ended[number] = "none"

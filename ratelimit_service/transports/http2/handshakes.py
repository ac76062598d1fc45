"""TLS of the fast transport: the certificates as they are when a client comes, and each client's records. Hot path.

RFC 9113, 9.2: TLS 1.2 or newer, h2 by ALPN, no compression, no renegotiation, and of TLS 1.2 only the ciphers that
appendix A leaves.

Bytes go in and out here, and sockets are others' work: an event loop that does TLS by itself tells nothing of clients
that never come through, nor of records that carry nothing, reads what it likes in one go, and keeps 256 KiB for it.
"""

import ssl
from contextlib import suppress
from typing import Any, Final

from ratelimit_service.transports.options import Tls
from ratelimit_service.transports.tls import Certificates

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

RECORD: Final = 16 * 1024
"""Bytes of data in the largest record: RFC 8446, 5.1. More at once would only make OpenSSL's buffers grow for good."""

_LARGEST: Final = RECORD + 2048
"""Bytes of a record as TLS 1.2 has it on the wire, without its head."""

_HEAD: Final = 5
"""Bytes of a record's head: its kind, two for the version, two for its length."""

_VERSION: Final = 3
"""What every version of TLS begins its own number with."""

MOST_RECORDS: Final = 32
"""Records that are read before it is asked how long that took: one that has us change keys takes 50 µs."""

_PLAIN: Final = "the client does not speak TLS, and this port does"
_WHY: Final = {
    "HTTP_REQUEST": _PLAIN,
    "HTTPS_PROXY_REQUEST": _PLAIN,
    "WRONG_VERSION_NUMBER": _PLAIN,
    "UNSUPPORTED_PROTOCOL": "the client speaks no TLS newer than 1.1",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
}


class Handshakes:
    """What is shown to clients. A context belongs to the files that it was made of, and to no others.

    So a new one has keys and memory of its own for sessions, and no session outlives the authority that its client was
    believed by. (One that is changed in the callback for server names goes on resuming those of the first.)
    """

    def __init__(self, tls: Tls) -> None:
        self.certificates = Certificates(tls)
        self._tls = tls
        self._used = self.certificates.current()
        self._context = _context(tls)

    def begin(self) -> "Session":
        """TLS of a client that has just connected, by the files as they are now."""
        pems = self.certificates.current()
        if pems is not self._used:
            # The files were good a moment ago; if they are not now, the next connection looks again.
            with suppress(OSError):
                self._context = _context(self._tls)
                self._used = pems
        return Session(self._context)


class Session:
    """TLS of one connection, record by record: one may take a hundred times as long as another of its size."""

    __slots__ = (
        *("_at", "_feed", "_object", "_out", "_outgoing", "_raw", "_read", "_write"),
        *("empty", "established", "more", "over"),
    )

    def __init__(self, context: ssl.SSLContext) -> None:
        incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(incoming, self._outgoing, server_side=True)
        self._feed, self._out = incoming.write, self._outgoing.read
        self._read, self._write = self._object.read, self._object.write
        self._raw = b""
        """What came and is not read, from `_at` on: the beginning of a record, or more."""
        self._at = 0
        self.established = False
        """The client is through its handshake."""
        self.more = False
        """There are records that are not read yet."""
        self.over = False
        """The client sends no more."""
        self.empty = 0
        """Records without data that came since the handshake: who reads it sets it back."""

    @property
    def weight(self) -> int:
        """Bytes of records that are not read."""
        return len(self._raw)

    @property
    def agreed(self) -> str | None:
        """The protocol of ALPN."""
        return self._object.selected_alpn_protocol()

    @property
    def shown(self) -> dict[str, Any]:
        """The certificate of the client."""
        return self._object.getpeercert() or {}

    def whole(self, raw: bytes) -> bytes | None:
        """The data, where this is one record and nothing else, as almost always; None when `receive` is to read it."""
        if self._raw or not self.established or len(raw) <= _HEAD:
            return None
        size = raw[3] << 8 | raw[4]
        if size + _HEAD != len(raw) or size > _LARGEST:
            return None
        self._feed(raw)
        try:
            data: bytes = self._read(size)
        except ssl.SSLWantReadError:
            self.empty += 1
            return b""
        self.over = not data
        return data

    def receive(self, raw: bytes) -> bytes:
        """The data in these bytes, after those before; again with none while there is `more`. SSLError ends it."""
        at = 0
        if self._raw:
            raw, at = (self._raw[self._at :] + raw, 0) if raw else (self._raw, self._at)
        self.more = False
        pieces: list[bytes] = []
        at = self._receive(raw, at, pieces)
        # What is left of a long read is not copied each time; the beginning of a record does not keep what was read.
        self._raw, self._at = (raw, at) if self.more else (raw[at:], 0)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _receive(self, raw: bytes, at: int, pieces: list[bytes]) -> int:
        """How far they were read."""
        end = len(raw)
        for _ in range(MOST_RECORDS):
            if end - at < _HEAD:
                return at
            size = raw[at + 3] << 8 | raw[at + 4]
            after = at + _HEAD + size
            if raw[at + 1] != _VERSION or size > _LARGEST:
                after = min(end, at + RECORD)  # no TLS: OpenSSL has names for it
            if after > end:
                return at
            self._feed(raw[at:after])
            at = after
            if not self.established:
                self._shake()
                continue
            try:
                data = self._read(size or 1)
            except ssl.SSLWantReadError:
                self.empty += 1
                continue
            if not data:
                self.over = True
                return end
            pieces.append(data)
        self.more = end - at >= _HEAD
        return at

    def _shake(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self._object.do_handshake()
            self.established = True

    def send(self, data: bytes) -> bytes:
        """As it is to leave."""
        if len(data) <= RECORD:
            self._write(data)
            return self._out()
        pieces = []
        for at in range(0, len(data), RECORD):
            self._write(data[at : at + RECORD])
            pieces.append(self._out())
        return b"".join(pieces)

    def take(self) -> bytes:
        """What TLS has to say by itself: handshakes, alerts, keys."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """The alert that nothing more will come: RFC 8446, 6.1."""
        with suppress(ssl.SSLError):
            self._object.unwrap()
        return self._outgoing.read()


def why(error: ssl.SSLError, what: str = "the handshake") -> str:
    """What TLS failed for, for the operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the client is not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    return _WHY.get(reason) or f"{what} failed: {reason.lower().replace('_', ' ')}"


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(tls.cert, tls.key, password="")
    if tls.client_ca:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context

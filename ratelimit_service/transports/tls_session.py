"""TLS of the http2 transport and of the operator's port: a session per connection, bytes in and bytes out.

RFC 9113, 9.2: TLS 1.2 or newer, no compression, no renegotiation, and of TLS 1.2 only the ciphers that appendix A
leaves.

No event loop's own TLS is used: that does not report clients that fail their handshake, nor records without data, reads
as much as it likes at once, and keeps 256 KiB for each connection.
"""

import ssl
from contextlib import suppress
from typing import Any, Final

from ratelimit_service.transports.options import Tls
from ratelimit_service.transports.tls import Certificates

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

RECORD: Final = 16 * 1024
"""Bytes of data in the largest record: RFC 8446, 5.1. More at once would make OpenSSL's buffers grow for good."""

_LARGEST: Final = RECORD + 2048
"""Bytes of the largest record of TLS 1.2 on the wire, without its head."""

_HEAD: Final = 5
"""Bytes of a record's head: its type, two of version, two of length."""

_VERSION: Final = 3
"""The first byte of the version, in every version of TLS."""

MAX_RECORDS: Final = 32
"""Records that are read before the clock is: one that changes our keys takes 50 µs."""

_PLAIN: Final = "the client does not speak TLS, and this port does"
_WHY: Final = {
    "HTTP_REQUEST": _PLAIN,
    "HTTPS_PROXY_REQUEST": _PLAIN,
    "WRONG_VERSION_NUMBER": _PLAIN,
    "UNSUPPORTED_PROTOCOL": "the client speaks no TLS newer than 1.1",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
}


class TlsServer:
    """Makes the TLS sessions of new connections, by the certificate files as they are then.

    Changed files make a new SSLContext, with keys and a session cache of its own, so that no session outlives the
    authority that the client's certificate was accepted by. (A context that is changed in the callback for server names
    goes on resuming sessions of the first.)
    """

    def __init__(self, tls: Tls, protocol: str) -> None:
        self.certificates = Certificates(tls)
        self._tls = tls
        self._protocol = protocol
        """By ALPN."""
        self._used = self.certificates.current()
        self._context = self._new_context()

    def begin(self) -> "TlsSession":
        """The session of a client that has just connected."""
        pems = self.certificates.current()
        if pems is not self._used:
            # The files were good a moment ago; if they are not now, the next connection tries again.
            with suppress(OSError):
                self._context = self._new_context()
                self._used = pems
        return TlsSession(self._context)

    def _new_context(self) -> ssl.SSLContext:
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(_CIPHERS)
        context.set_alpn_protocols([self._protocol])
        context.load_cert_chain(tls.cert, tls.key, password="")
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TlsSession:
    """TLS of one connection, read record by record: one may take a hundred times as long as another of its size."""

    __slots__ = (
        *("_at", "_feed", "_longest_in", "_longest_out", "_object", "_out", "_outgoing", "_raw", "_read", "_write"),
        *("empty", "established", "more", "over"),
    )

    def __init__(self, context: ssl.SSLContext) -> None:
        incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(incoming, self._outgoing, server_side=True)
        self._feed, self._out = incoming.write, self._outgoing.read
        self._read, self._write = self._object.read, self._object.write
        self._raw = b""
        """What came and is not read, from `_at` on: an incomplete record, or more."""
        self._at = 0
        self._longest_in = self._longest_out = 0
        """Bytes of the longest record each way."""
        self.established = False
        """The handshake is complete."""
        self.more = False
        """MAX_RECORDS were read, and there may be others."""
        self.over = False
        """The client sends no more."""
        self.empty = 0
        """Records without data that came since `take_empty`."""

    @property
    def weight(self) -> int:
        """Bytes of records that are not read, and of the buffers that OpenSSL keeps, as large as they ever were."""
        return len(self._raw) + (self._longest_in + self._longest_out) * 4 // 3  # BUF_MEM_grow

    def take_empty(self) -> int:
        """The number of records without data since this was called last."""
        count, self.empty = self.empty, 0
        return count

    @property
    def protocol(self) -> str | None:
        """The protocol that ALPN selected."""
        return self._object.selected_alpn_protocol()

    @property
    def client_certificate(self) -> dict[str, Any]:
        """As `getpeercert` returns it; empty if the client showed none."""
        return self._object.getpeercert() or {}

    def decrypt_record(self, raw: bytes) -> bytes | None:
        """The data, if the bytes are one whole record, as almost always; else None, and `decrypt` must read them."""
        if self._raw or not self.established or len(raw) <= _HEAD:
            return None
        size = raw[3] << 8 | raw[4]
        if size + _HEAD != len(raw) or size > _LARGEST:
            return None
        if size > self._longest_in:  # noqa: PLR1730 - max() takes 60 ns
            self._longest_in = size
        self._feed(raw)
        try:
            data: bytes = self._read(size)
        except ssl.SSLWantReadError:
            self.empty += 1
            return b""
        self.over = not data
        return data

    def decrypt(self, raw: bytes) -> bytes:
        """The data in these bytes, which come after those before; called again without bytes while there is `more`.

        SSLError ends the session.
        """
        at = 0
        if self._raw:
            raw, at = (self._raw[self._at :] + raw, 0) if raw else (self._raw, self._at)
        self.more = False
        pieces: list[bytes] = []
        at = self._read_records(raw, at, pieces)
        # What is left of a long read is not copied each time; an incomplete record does not keep what was read before.
        self._raw, self._at = (raw, at) if self.more else (raw[at:], 0)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_records(self, raw: bytes, at: int, pieces: list[bytes]) -> int:
        """Read records; returns how far the bytes were read."""
        end = len(raw)
        for _ in range(MAX_RECORDS):
            if end - at < _HEAD:
                return at
            size = raw[at + 3] << 8 | raw[at + 4]
            after = at + _HEAD + size
            if raw[at + 1] != _VERSION or size > _LARGEST:
                after = min(end, at + RECORD)  # no TLS: OpenSSL names the error
            if after > end:
                return at
            self._longest_in = max(self._longest_in, after - at)
            self._feed(raw[at:after])
            at = after
            if not self.established:
                self._do_handshake()
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

    def _do_handshake(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self._object.do_handshake()
            self.established = True

    def encrypt(self, data: bytes) -> bytes:
        """The records of this data."""
        size = len(data)
        if size > self._longest_out:
            self._longest_out = min(size, RECORD)
        if size <= RECORD:
            self._write(data)
            return self._out()
        pieces = []
        for at in range(0, size, RECORD):
            self._write(data[at : at + RECORD])
            pieces.append(self._out())
        return b"".join(pieces)

    def take_output(self) -> bytes:
        """The records that TLS sends by itself: of handshakes, alerts, keys."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """The alert close_notify: RFC 8446, 6.1."""
        with suppress(ssl.SSLError):
            self._object.unwrap()
        return self._outgoing.read()


def tls_failure(error: ssl.SSLError, what: str) -> str:
    """The reason why TLS failed, for the operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the client is not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    return _WHY.get(reason) or f"{what} failed: {reason.lower().replace('_', ' ')}"

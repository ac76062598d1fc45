"""TLS of the fast transport: the certificates as they are when a client comes, and why handshakes fail.

RFC 9113, 9.2: TLS 1.2 or newer, h2 by ALPN, no compression, no renegotiation, and of TLS 1.2 only the ciphers that
appendix A leaves.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from ratelimit_service.transports.options import Tls
from ratelimit_service.transports.tls import Certificates

Failed = Callable[[str], None]

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

_PLAIN: Final = "the client does not speak TLS, and this port does"
_WHY: Final = {
    "HTTP_REQUEST": _PLAIN,
    "HTTPS_PROXY_REQUEST": _PLAIN,
    "WRONG_VERSION_NUMBER": _PLAIN,
    "UNSUPPORTED_PROTOCOL": "the client speaks no TLS newer than 1.1",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
}


class Handshakes(ssl.SSLContext):
    """To an event loop it is one context; each connection gets that of the files as they are then.

    A new one has keys and memory of its own for sessions, so that no session outlives the authority that its client was
    believed by. (A context that is changed in the callback for server names goes on resuming those of the first one.)
    """

    def __new__(cls, _tls: Tls, _failed: Failed) -> Self:
        """As SSLContext has it: the protocol is its only argument."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: Tls, failed: Failed) -> None:
        self._tls = tls
        self._failed = failed
        self._certificates = Certificates(tls)
        self._current = _context(tls)
        self._stale = False

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """The next connection."""
        if self._certificates.changed() is not None:
            self._stale = True
        if self._stale:
            # The files were good a moment ago; if they are not now, the next connection looks again.
            with suppress(OSError):
                self._current = _context(self._tls)
                self._stale = False
        made = self._current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _Handshake)
        made.failed = self._failed
        return made


class _Handshake(ssl.SSLObject):
    """Event loops keep to themselves why a handshake failed."""

    failed: Failed

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLCertVerificationError as error:
            self.failed(f"the certificate of the client is not accepted: {error.verify_message}")
            raise
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            self.failed(_WHY.get(reason) or f"the handshake failed: {reason.lower().replace('_', ' ')}")
            raise


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Handshake
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(tls.cert, tls.key, password="")
    if tls.client_ca:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context

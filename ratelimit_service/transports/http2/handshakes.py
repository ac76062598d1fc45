"""TLS of the fast transport: the certificates as they are when a client comes, and why handshakes fail.

RFC 9113, 9.2: TLS 1.2 or newer, h2 by ALPN, no compression, no renegotiation, and of TLS 1.2 only the ciphers that
appendix A leaves.
"""

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from ratelimit_service.transports.options import Tls
from ratelimit_service.transports.tls import Certificates

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

_ALERT: Final = "_alert"
"""Under this name errors of handshakes carry it."""

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

    def __init__(self, tls: Tls, seconds: float) -> None:
        self.certificates = Certificates(tls)
        self._tls = tls
        self._seconds = seconds
        self._used = self.certificates.current()
        self._context = _context(tls)

    async def shake(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport:
        """The transport above this one, once the client is through; an OSError when it does not come: see `why`."""
        loop, context, seconds = asyncio.get_running_loop(), self._newest(), self._seconds
        with _last_words_to(transport):
            async with asyncio.timeout(seconds):  # the loop's own timeout cannot be told from a client that goes away
                secured = await loop.start_tls(
                    transport, protocol, context, server_side=True, ssl_handshake_timeout=2 * seconds
                )
        assert secured is not None, "the protocol was not there"
        return secured

    def _newest(self) -> ssl.SSLContext:
        pems = self.certificates.current()
        if pems is not self._used:
            # The files were good a moment ago; if they are not now, the next connection looks again.
            with suppress(OSError):
                self._context = _context(self._tls)
                self._used = pems
        return self._context


def why(error: BaseException) -> str | None:
    """What a handshake failed for, for the operator; None when the client only went away."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the client is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _WHY.get(reason) or f"the handshake failed: {reason.lower().replace('_', ' ')}"
    return None


class _Handshake(ssl.SSLObject):
    """Has its errors carry the alert that is to tell the client what they are (RFC 8446, 6.2)."""

    _outgoing: ssl.MemoryBIO

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> Self:
        made: Self = super()._create(incoming, outgoing, *args, **more)  # type: ignore[misc] # not in the stubs
        made._outgoing = outgoing
        return made

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            setattr(error, _ALERT, self._outgoing.read())
            raise


@contextmanager
def _last_words_to(transport: asyncio.Transport) -> Iterator[None]:
    """Sends the alert of a handshake that fails in it: asyncio's loop and uvloop's drop it with the connection.

    By then the transport takes nothing more, and may have closed its socket: so there is another of it meanwhile.
    """
    try:
        spare = os.dup(transport.get_extra_info("socket").fileno())
    except OSError:  # the client is gone already, or there are no files left
        yield
        return
    try:
        yield
    except ssl.SSLError as error:
        with suppress(OSError):
            os.write(spare, getattr(error, _ALERT, b""))
        raise
    finally:
        os.close(spare)


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

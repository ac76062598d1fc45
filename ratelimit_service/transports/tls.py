"""Certificates: read and checked, read again when the files change, and whether a client bears the right name.

A new pair is used from the next connection on; a broken one is reported once, and the old one stays.
"""

import logging
import ssl
import threading
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from ratelimit_service.errors import StartError
from ratelimit_service.transports.options import Tls

log = logging.getLogger(__name__)


_DATES: Final = {9: "it is not valid yet", 10: "it has expired"}
"""By OpenSSL's codes."""


class Pems(NamedTuple):
    """What the files hold."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """The certificates in use. StartError from the constructor, in one line, when they cannot be used."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._refused: object = None
        # Transports may ask from several threads at once; a change is to be logged once.
        self._lock = threading.Lock()
        self.current = _read(tls)
        if problem := _out_of_date(_check(tls, self.current), self.current):
            # Whoever starts with it may have none that is better, and clients that do not look.
            log.warning("certificate %s: %s", tls.cert, problem)

    def changed(self) -> Pems | None:
        """What to use from now on, if the files have changed and are good; never raises. For each new connection."""
        with self._lock:
            try:
                pems = _read(self._tls)
                if pems == self.current:
                    if self._refused is not None:
                        self._refused = None
                        log.info("certificate %s is again the one in use", self._tls.cert)
                    return None
                if pems == self._refused:
                    return None
                try:
                    _check_better(self._tls, pems)
                except StartError as error:
                    if pems == _read(self._tls):
                        self._refuse(pems, error)
                    return None
                if pems != _read(self._tls):
                    return None  # they change this moment; the next connection sees what becomes of it
            except StartError as error:
                self._refuse(str(error), error)
                return None
            self.current, self._refused = pems, None
            log.info("certificate loaded again from %s", self._tls.cert)
            return pems

    def _refuse(self, what: object, error: StartError) -> None:
        if what != self._refused:
            self._refused = what
            log.error("certificate not loaded, the old one stays: %s", error)


def _read(tls: Tls) -> Pems:
    return Pems(
        _bytes("certificate", tls.cert),
        _bytes("private key", tls.key),
        _bytes("client CA", tls.client_ca) if tls.client_ca else None,
    )


def _bytes(what: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StartError(f"cannot read the {what} {path}: {(error.strerror or str(error)).lower()}") from error


def _check(tls: Tls, pems: Pems) -> ssl.SSLContext:
    """A context with them; StartError unless certificate and key are such, and belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for what, path, pem in ("certificate", tls.cert, pems.cert), ("client CA", tls.client_ca, pems.client_ca):
        if pem is None:
            continue
        try:
            context.load_verify_locations(cadata=pem.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise StartError(f"cannot use the {what} {path}: it is not a certificate in PEM") from error
    try:
        # The empty password keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        if isinstance(error, ssl.SSLError) and "MISMATCH" in (error.reason or ""):
            problem = f"it does not belong to the certificate {tls.cert}"
        else:
            problem = "it is not a private key in PEM without a password"
        raise StartError(f"cannot use the private key {tls.key}: {problem}") from error
    return context


def _check_better(tls: Tls, pems: Pems) -> None:
    """As `_check`, and StartError too when clients will refuse it for its dates: then the old one is no worse."""
    if problem := _out_of_date(_check(tls, pems), pems):
        raise StartError(f"cannot use the certificate {tls.cert}: {problem}")


def _out_of_date(server: ssl.SSLContext, pems: Pems) -> str:
    """What is wrong with the dates of the certificate, as a client says that trusts nothing else: `ssl` reads none."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=pems.cert.decode("ascii", "ignore"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return _DATES.get(error.verify_code, "")
        except ssl.SSLError:
            return ""  # it has no dates to do with
    return ""


def bears(names: Iterable[str], wanted: str) -> bool:
    """Whether one of a certificate's names is the wanted one, as Go's VerifyHostname has it, and URIs to the letter."""
    return any(_fits(name, wanted) for name in names)


def _fits(name: str, wanted: str) -> bool:
    if name == wanted:
        return True
    if "/" in name or "/" in wanted:
        return False
    try:
        return ip_address(name) == ip_address(wanted)
    except ValueError:
        pass
    name, wanted = name.lower().rstrip("."), wanted.lower().rstrip(".")
    if name.startswith("*."):
        # RFC 6125, 6.4.3: the asterisk stands for the whole leftmost label and for no more.
        label, _, rest = wanted.partition(".")
        return bool(label) and rest == name[2:]
    return name == wanted

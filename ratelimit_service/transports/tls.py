"""Certificates: read and checked, reloaded when the files change, and whether a client's bears the required name.

A new pair is used from the next connection on; a broken one is logged once, and the old one stays.
"""

import logging
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from time import time
from typing import Final, NamedTuple

from ratelimit_service.errors import StartError
from ratelimit_service.system.disk import Change, ReloadedFiles, read_file
from ratelimit_service.telemetry.metric import Metric, gauge
from ratelimit_service.transports.options import Tls

log = logging.getLogger(__name__)


_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` has no name for."""


class Pems(NamedTuple):
    """The contents of the files."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


Dates = tuple[int, int] | None
"""The moments from and to which a certificate is valid, in seconds since the epoch; None where that is not known."""


class Certificates:
    """The certificate in use, its key, and the CA of clients. StartError, in one line, when they cannot be used."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        try:
            self._files = ReloadedFiles(partial(_read, tls), partial(_load, tls), partial(_load_valid, tls))
        except TimeoutError as error:
            raise StartError(self._not_read(error)) from error
        _, dates = self._files.loaded
        if problem := _out_of_date(dates):
            # A service may start with it all the same: there may be none that is better, and clients that do not look.
            log.warning("certificate %s: %s", tls.cert, problem)

    def current(self) -> Pems:
        """The context for a new connection: another one if the files have changed and are good; never raises."""
        match self._files.refresh():
            case Change.LOADED:
                log.info("certificate reloaded from %s", self._tls.cert)
            case Change.RESTORED:
                log.info("the certificate file %s matches the certificate in use again", self._tls.cert)
            case Change.REFUSED:
                problem = self._files.problem
                text = self._not_read(problem) if isinstance(problem, TimeoutError) else problem
                log.error("certificate not loaded, the old one stays: %s", text)
        return self._files.loaded[0]

    def metrics(self, prefix: str = "ratelimit_tls") -> Sequence[Metric]:
        """Whether the files as they are now are in use, and when the certificate expires."""
        self.current()  # not only when the next connection comes
        name = f"{prefix}_reload_last_attempt_successful"
        text = "1 if the certificate on disk is in use, 0 if it cannot be used and an older one is in use."
        found = [gauge(name, text, int(self._files.problem is None), merge_by_min=True)]
        _, dates = self._files.loaded
        if dates is not None:
            name, text = f"{prefix}_certificate_expiry_timestamp_seconds", "When the certificate in use expires."
            found.append(gauge(name, text, dates[1], merge_by_min=True))
        return found

    def _not_read(self, error: TimeoutError) -> str:
        return f"cannot read the certificate {self._tls.cert}: {error.strerror}"


def _read(tls: Tls) -> Pems:
    return Pems(
        _bytes("certificate", tls.cert),
        _bytes("private key", tls.key),
        _bytes("client CA", tls.client_ca) if tls.client_ca else None,
    )


def _bytes(what: str, path: str) -> bytes:
    try:
        return read_file(path)
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


def _load(tls: Tls, pems: Pems) -> tuple[Pems, Dates]:
    """The files, and the dates of the certificate; StartError when they cannot be used."""
    return pems, _dates(_check(tls, pems), pems)


def _load_valid(tls: Tls, pems: Pems) -> tuple[Pems, Dates]:
    """As `_load`; StartError also when clients will refuse the certificate for its dates: the old one is no worse."""
    _, dates = loaded = _load(tls, pems)
    if problem := _out_of_date(dates):
        raise StartError(f"cannot use the certificate {tls.cert}: {problem}")
    return loaded


def _dates(server: ssl.SSLContext, pems: Pems) -> Dates:
    """The dates of the certificate, as a client sees it that trusts nothing else: `ssl` does not read them from a file.

    None when such a client finds something else wrong with it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    client.load_verify_locations(cadata=pems.cert.decode("ascii", "ignore"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in (*ends, *ends, *ends):  # TLS 1.2 takes five steps, 1.3 three
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return None
    shown = ends[0].getpeercert() or {}
    first, last = (ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
    return first, last


def _out_of_date(dates: Dates) -> str:
    """The problem with their dates now, if there is one."""
    now = time()
    if dates is None:
        return ""
    return "it is not valid yet" if now < dates[0] else "it has expired" if now > dates[1] else ""


def bears(names: Iterable[str], wanted: str) -> bool:
    """Whether one of a certificate's names is the wanted one, by the rules of Go's VerifyHostname; URIs are equal."""
    return any(_fits(name, wanted) for name in names)


def _fits(name: str, wanted: str) -> bool:
    if name == wanted:
        return True
    if "/" in name or "/" in wanted:
        return False
    with suppress(ValueError):
        return ip_address(name) == ip_address(wanted)
    name, wanted = name.lower().rstrip("."), wanted.lower().rstrip(".")
    if name.startswith("*."):
        # RFC 6125, 6.4.3: the asterisk stands for the whole leftmost label and for no more.
        label, _, rest = wanted.partition(".")
        return bool(label) and rest == name[2:]
    return name == wanted

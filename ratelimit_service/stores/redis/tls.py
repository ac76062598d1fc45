"""Certificates for connections to Redis: what the files hold when a connection is opened, if that can be used.

A CA or a client certificate that is renewed is used from the next connection on; a broken one is logged once, and the
old one stays.
"""

import logging
import ssl

from ratelimit_service.errors import StartError
from ratelimit_service.settings import Settings
from ratelimit_service.system.disk import Change, ReloadedFiles, read_file

log = logging.getLogger(__name__)


class RedisCertificates:
    """The certificates of the settings. StartError from the constructor when they cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._ca = settings.redis_tls_cacert
        self._cert = settings.redis_tls_client_cert
        self._key = settings.redis_tls_client_key
        self._check_hostname = not settings.redis_tls_skip_hostname_verification
        try:
            self._files = ReloadedFiles(self._read, self._load)
        except OSError as error:  # ssl.SSLError is one
            raise StartError(
                "cannot use the certificates of REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY:"
                f" {error}"
            ) from error

    def current(self) -> ssl.SSLContext:
        """What to use for a new connection; never raises."""
        match self._files.refresh():
            case Change.LOADED:
                log.info("certificates for Redis loaded again")
            case Change.RESTORED:
                log.info("certificates for Redis are again those in use")
            case Change.REFUSED:
                log.error("certificates for Redis not loaded, the old ones stay: %s", self._files.problem)
        return self._files.loaded

    def _read(self) -> list[bytes]:
        return [read_file(path) for path in (self._ca, self._cert, self._key) if path]

    def _load(self, _: list[bytes]) -> ssl.SSLContext:
        """As envoyproxy/ratelimit: the CA is added to the system's, and the name may be left unchecked."""
        context = ssl.create_default_context()
        if self._ca:
            context.load_verify_locations(self._ca)
        if self._cert:
            # The empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(self._cert, self._key or None, password="")
        context.check_hostname = self._check_hostname
        return context

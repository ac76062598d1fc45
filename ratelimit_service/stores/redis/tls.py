"""Certificates for connections to Redis: what the files hold when a connection is opened, if that can be used.

A CA or a client certificate that is renewed is used from the next connection on; a broken one is logged once, and the
old one stays.
"""

import logging
import ssl

from ratelimit_service.errors import StartError
from ratelimit_service.settings import Settings
from ratelimit_service.system.disk import START_PATIENCE_SECONDS, BoundedRead, read_file

log = logging.getLogger(__name__)


class Certificates:
    """Those of the settings. StartError from the constructor when they cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._ca = settings.redis_tls_cacert
        self._cert = settings.redis_tls_client_cert
        self._key = settings.redis_tls_client_key
        self._check_hostname = not settings.redis_tls_skip_hostname_verification
        self._held: list[bytes] = []
        self._files = BoundedRead(self._read)
        self._refused = ""
        try:
            self._held = self._files.now(START_PATIENCE_SECONDS)
            self._current = self._load()
        except OSError as error:
            raise StartError(
                "cannot use the certificates of REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY:"
                f" {error}"
            ) from error

    def current(self) -> ssl.SSLContext:
        """What to connect with now; never raises."""
        try:
            held = self._files.now()
            if held != self._held:
                self._current, self._held = self._load(), held
                log.info("certificates for Redis loaded again")
            self._refused = ""
        except OSError as error:  # ssl.SSLError is one
            if str(error) != self._refused:
                self._refused = str(error)
                log.error("certificates for Redis not loaded, the old ones stay: %s", error)  # noqa: TRY400 - one line
        return self._current

    def _read(self) -> list[bytes]:
        return [read_file(path) for path in (self._ca, self._cert, self._key) if path]

    def _load(self) -> ssl.SSLContext:
        """As upstream has it: the CA comes on top of the system's, and the name may be left unchecked."""
        context = ssl.create_default_context()
        if self._ca:
            context.load_verify_locations(self._ca)
        if self._cert:
            # The empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(self._cert, self._key or None, password="")
        context.check_hostname = self._check_hostname
        return context

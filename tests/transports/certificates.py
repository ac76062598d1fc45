"""Certificates, made by the openssl program."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Issued(NamedTuple):
    """A certificate and its key, in files."""

    cert: Path
    key: Path

    @property
    def environ(self) -> dict[str, str]:
        """The settings of a service that shows it."""
        return {
            "GRPC_SERVER_USE_TLS": "true",
            "GRPC_SERVER_TLS_CERT": str(self.cert),
            "GRPC_SERVER_TLS_KEY": str(self.key),
        }


def authority(folder: Path, name: str = "ca") -> Issued:
    """One that signs others."""
    return _issue(folder, name, ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"], [])


def issue(by: Issued, name: str, *san: str) -> Issued:
    """One for a server or client of these names (`DNS:…`, `IP:…`, `URI:…`), beside its authority."""
    signed = ["-CA", str(by.cert), "-CAkey", str(by.key)]
    names = [f"subjectAltName={','.join(san)}"] if san else []
    return _issue(by.cert.parent, name, ["basicConstraints=critical,CA:FALSE", *names], signed)


def expired(by: Issued, issued: Issued) -> Path:
    """A certificate for the same key whose time was over yesterday."""
    request = ["openssl", "req", "-new", "-key", str(issued.key), "-subj", "/CN=expired"]
    signed = ["-CA", str(by.cert), "-CAkey", str(by.key), "-days", "-1"]
    made = subprocess.run(request, check=True, capture_output=True, timeout=60).stdout
    out = issued.cert.with_name("expired.pem")
    command = ["openssl", "x509", "-req", *signed, "-out", str(out)]
    subprocess.run(command, input=made, check=True, capture_output=True, timeout=60)
    return out


def _issue(folder: Path, name: str, extensions: list[str], signed: list[str]) -> Issued:
    issued = Issued(folder / f"{name}.pem", folder / f"{name}.key")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(issued.key)]
    added = [word for extension in extensions for word in ("-addext", extension)]
    command = ["openssl", "req", "-x509", *key, "-out", str(issued.cert), "-subj", f"/CN={name}", "-days", "2"]
    subprocess.run([*command, *added, *signed], check=True, capture_output=True, timeout=60)
    return issued

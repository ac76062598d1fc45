"""The packages that a running service has, as CycloneDX 1.6: by the lock, without what only builds.

A lock tells versions, hashes and, in its `# via` lines, what needs what; licences are those that the installed packages
state. The wheel is named as a part of the service.
"""

import hashlib
import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from deploy.release.version import Refused

_ENTRY: Final = re.compile(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=.+\n)+)((?:    #.*\n)+)", re.MULTILINE)
_US: Final = "ratelimit-service"
_NEEDED_BY_US: Final = f"{_US} (pyproject.toml)"
"""Its builders are there for `pyproject.toml::build-system…`."""

_LICENCES: Final = {
    "aiosignal": "Apache-2.0",
    "async-timeout": "Apache-2.0",
    "google-re2": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "uvloop": "MIT OR Apache-2.0",
}
"""Of those that state theirs in words of their own; requirements/README.md has them too."""


class Package(NamedTuple):
    """A package of the lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file that may be installed, by machine and Python."""
    needed_by: frozenset[str]

    @property
    def purl(self) -> str:
        """Its name among all packages of all kinds; CycloneDX refers to it by this."""
        return f"pkg:pypi/{self.name}@{self.version}"


def sbom(lock: str, version: str, time: str, wheel: Path) -> dict[str, Any]:
    """The bill of materials of this wheel of this version, made at this time."""
    us = f"pkg:pypi/{_US}@{version}"
    packages = packages_that_run(lock)
    needs = {
        purl: sorted(package.purl for package in packages if name in package.needed_by)
        for purl, name in [(us, _NEEDED_BY_US), *((package.purl, package.name) for package in packages)]
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'{us} {time}')}",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "lifecycles": [{"phase": "pre-build"}],
            "component": _component("application", us, _US, version, "Apache-2.0") | {"components": [_file(wheel)]},
        },
        "components": [_library(package) for package in packages],
        "dependencies": [{"ref": purl, "dependsOn": needed} for purl, needed in needs.items()],
    }


def packages_that_run(lock: str) -> list[Package]:
    """Those that the service needs, and those that these need."""
    locked = _packages(lock)
    wanted = {_NEEDED_BY_US}
    while more := {package.name for package in locked if package.needed_by & wanted} - wanted:
        wanted |= more
    return [package for package in locked if package.name in wanted]


def _packages(lock: str) -> list[Package]:
    return [
        Package(name, version, tuple(re.findall(r"sha256:(\w+)", hashes)), frozenset(_via(comment)))
        for name, version, hashes, comment in _ENTRY.findall(lock)
    ]


def _via(comment: str) -> Iterable[str]:
    """What the lock's comment says of who needs it: `# via NAME`, or a line for each."""
    return (line.removeprefix("via").strip() for line in re.findall(r"# *(.+)", comment))


def _component(kind: str, purl: str, name: str, version: str, licence: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [{"expression": licence}],
    }


def _file(path: Path) -> dict[str, Any]:
    return {"type": "file", "name": path.name, "hashes": _hashes([hashlib.sha256(path.read_bytes()).hexdigest()])}


def _library(package: Package) -> dict[str, Any]:
    described = _component("library", package.purl, package.name, package.version, _licence(package))
    return described | {"hashes": _hashes(package.hashes)}


def _hashes(contents: Iterable[str]) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": content} for content in contents]


def _licence(package: Package) -> str:
    """Its SPDX expression."""
    metadata = importlib.metadata.metadata(package.name)
    if metadata["Version"] != package.version:
        raise Refused(f"{package.name} is {metadata['Version']} here, and {package.version} in the lock")
    stated = "License-Expression" if "License-Expression" in metadata else "License"
    return _LICENCES.get(package.name) or metadata[stated]

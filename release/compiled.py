"""The compiled wheel: the busiest modules of HTTP/2 in C by Cython, beside their sources, which stay the only truth.

hatchling calls this where HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 asks for it; the wheel is for the Python and the machine
that build it. The code is that of the files, and Cython is told to take their types for comments. A class with
`__slots__` becomes a struct, by a .pxd that is made of these slots here: otherwise compiled code looks each attribute
up by its name, and takes longer than the interpreter, which remembers where it was.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE: Final = "ratelimit_service/transports/http2"
MODULES: Final = ("connection", "stream", "streams")
"""docs/performance.md says what others save, and cost."""


class CompiledWheel(BuildHookInterface[Any]):
    """Adds a library for each of the modules."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make them, before the wheel is put together."""
        self._scratch = TemporaryDirectory()
        if version == "editable":
            return
        build_data.update(pure_python=False, infer_tag=True)
        for module in MODULES:
            library = _compile(Path(self.root), module, Path(self._scratch.name))
            build_data["force_include"][str(library)] = f"{PACKAGE}/{library.name}"

    def finalize(self, *_: Any) -> None:
        """Remove what was made on the way."""
        self._scratch.cleanup()


def _compile(root: Path, module: str, scratch: Path) -> Path:
    """The library of a module; the folders' names are not in it, so that another machine makes the same bytes."""
    place = Path(PACKAGE, f"{module}.py")
    (scratch / PACKAGE).mkdir(parents=True, exist_ok=True)
    for package in place.parents[:-1]:
        (scratch / package / "__init__.py").touch()  # Cython looks for a .pxd in packages alone
    shutil.copy(root / place, scratch / place)
    (scratch / place).with_suffix(".pxd").write_text("\n".join(_structs((root / place).read_text("utf-8"))), "utf-8")
    _run([sys.executable, "-m", "cython", "-3", "--directive", "annotation_typing=False", str(place)], scratch)
    library = f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    # -O2 takes twice as long and makes nothing faster. Without debug information and symbols, which have paths.
    options = ["-shared", "-fPIC", "-O1", "-fwrapv", "-DNDEBUG", "-g0", "-s", f"-I{sysconfig.get_path('include')}"]
    _run([*compiler, *options, "-o", library, str(place.with_suffix(".c"))], scratch)
    return scratch / library


def _structs(source: str) -> Iterator[str]:
    """What Cython has to know: the classes that inherit nothing, with the slots that they state."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and not node.bases]
    for each in classes:
        for line in each.body:
            match line:
                case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                    slots = (str(node.value) for node in ast.walk(value) if isinstance(node, ast.Constant))
                    yield f"cdef class {each.name}:\n    cdef public object {', '.join(slots)}\n"


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit(f"the compiled wheel needs a C compiler, and there is no {command[0]}: install gcc, or set CC")
    if done.returncode:
        sys.exit(f"{shlex.join(command)}:\n{done.stderr}")

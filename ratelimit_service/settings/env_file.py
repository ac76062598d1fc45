"""`.env` files: lines of `NAME=value`, quotes, comments and `export` as python-dotenv reads them."""

from io import StringIO
from pathlib import Path
from typing import NamedTuple

from dotenv.parser import Original, parse_stream

from ratelimit_service.system.disk import read_file


class Given(NamedTuple):
    """A text and the name under which the operator gave it."""

    text: str
    label: str


def default_env_file() -> Path | None:
    """The file that is read when none is named: `.env`, if there is one here."""
    path = Path(".env")
    return path if path.exists() and not path.is_dir() else None  # some have virtual environments of that name


def read_env_file(path: Path, problems: list[str]) -> dict[str, Given]:
    """The variables of the file; `${NAME}` stays as it is, so that only the file decides what the file says."""
    given: dict[str, Given] = {}
    try:
        for binding in parse_stream(StringIO(read_file(path).decode(), newline=None)):
            if binding.error or (binding.key and binding.value is None):
                problems.append(f"{path}:{_line(binding.original)}: is not a line such as GRPC_PORT=8081")
            elif binding.key:
                given[binding.key] = Given(binding.value or "", f"{binding.key} (in {path})")
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{path}: cannot be read: it is not UTF-8")
    return given


def _line(original: Original) -> int:
    """Where the text begins: python-dotenv counts the empty lines in front of it as part of it."""
    text = original.string
    return original.line + text[: len(text) - len(text.lstrip())].count("\n")

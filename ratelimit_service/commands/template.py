"""A value with fields in it, such as `u{key}`, that `load` and `simulate` fill in."""

from collections.abc import Iterator
from string import Formatter


def pieces(value: str) -> Iterator[tuple[str, str | None]]:
    """The texts of a value, each with the name of the field behind it, or None. ValueError says what is wrong."""
    try:
        parsed = list(Formatter().parse(value))
    except ValueError as error:
        raise ValueError(f"{error}; a brace itself is {{{{ or }}}}") from error
    for text, field, form, conversion in parsed:
        if field == "" or form or conversion:
            raise ValueError("write a field as {name}, such as {user}; a brace itself is {{ or }}")
        yield text, field

"""Reads the JSON of a request's body."""

import json
from collections.abc import Callable, Sequence
from typing import Any


def read_json(body: bytes, make: Callable[[Sequence[tuple[str, Any]]], object] | None = None) -> Any:
    r"""The value of a body, with objects that `make` has made of their members. ValueError that says what is wrong.

    JSON can write half of a surrogate pair, `"\ud800"`, which no text in UTF-8 has: it is refused wherever it stands,
    because what follows encodes names and texts.
    """
    text = body.decode()
    try:
        found = json.loads(text, object_pairs_hook=make)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has a character that cannot be written as UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return found

"""Takes the outer layers of a protobuf message apart, field by field.

protobuf's C code decodes a message in one call, during which no other thread runs: 70 ms for 20 MB, for which all calls
would wait. This loop can be interrupted, and what is inside is decoded piece by piece.
"""

from collections.abc import Iterator

_MAX_VARINT_BYTES = 10


def fields_of(message: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """The number and the bytes of each field that has a length: of texts, bytes and messages. Others are skipped.

    Raises ValueError where the bytes are not those of a message.
    """
    view = memoryview(message)
    at, end = 0, len(view)
    while at < end:
        tag = view[at]
        tag, at = (tag, at + 1) if tag < 0x80 else _varint(view, at)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise ValueError(f"there is a field without a number before byte {at}")
        match wire_type:
            case 0:
                _, at = _varint(view, at)
            case 1:
                at += 8
            case 2:
                length = view[at] if at < end else 0x80
                length, at = (length, at + 1) if length < 0x80 else _varint(view, at)
                if length > end - at:
                    raise ValueError(f"field {number} is cut off at byte {end}")
                yield number, bytes(view[at : at + length])
                at += length
            case 5:
                at += 4
            case _:
                raise ValueError(f"field {number} has the unknown wire type {wire_type}")
    if at > end:
        raise ValueError(f"the last field is cut off at byte {end}")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at this place, and the place after it."""
    found = shift = 0
    for place in range(at, min(at + _MAX_VARINT_BYTES, len(view))):
        byte = view[place]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, place + 1
        shift += 7
    raise ValueError(f"a number is cut off, or too long, at byte {at}")

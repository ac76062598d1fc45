"""Protobuf's wire format, for the messages that are written by hand. Hot path."""


def varint(number: int) -> bytes:
    """A number >= 0 in protobuf's format."""
    if number < 128:
        return bytes((number,))
    out: list[int] = []
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(tag: int, body: bytes) -> bytes:
    """A field of bytes, text or a message; the tag is below 128."""
    size = len(body)
    return (bytes((tag, size)) if size < 128 else bytes((tag,)) + varint(size)) + body

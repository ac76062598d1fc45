"""A header block cut into its fields, each by its bytes, undecoded: RFC 7541, 6. Hot path for clients that trace.

Such a client sends an identifier of its own with each call, so that no block comes twice; but all of its other fields
do. Only what any table of headers says the same of is cut; for the rest the answer is None, and who asked decodes.
"""


def cut(block: bytes) -> list[bytes] | None:  # noqa: PLR0912 - one loop: a function call costs as much as a field
    """The fields; None when it is not sure that they are, or when one is longer than 253 bytes."""
    fields = []
    at, end = int(block[:1] == b"\x20"), len(block)  # a table that shrinks to nothing, as it is already
    try:
        while at < end:
            start = at
            first = block[at]
            at += 1
            if first & 0x80:  # an entry of the static table
                if not 0x80 < first <= 0x80 + 61:
                    return None
            else:
                if first & 0x40:
                    name, largest = first & 0x3F, 0x3F
                elif first & 0x20:
                    return None
                else:
                    name, largest = first & 0x0F, 0x0F
                if name == largest:
                    if block[at] > 61 - largest:
                        return None
                    at += 1
                elif not name:
                    length = block[at] & 0x7F
                    if length == 0x7F:
                        return None
                    at += 1 + length
                length = block[at] & 0x7F
                at += 1
                if length == 0x7F:
                    if block[at] >= 0x7F:
                        return None
                    length += block[at]
                    at += 1
                at += length
            fields.append(block[start:at])
    except IndexError:
        return None
    return fields if at == end else None

"""Header blocks: from bytes to what a client asks, and the few that we send.

When a client has made a call, we announce a header table of no entries. Once its encoder has shrunk its own, a block
means the same whenever it comes, so those seen before are looked up by their bytes; a new one, and all until then, the
`hpack` library decodes. Who makes no call need not care, and who begins by saying how large its table is, within the
4096 bytes of RFC 9113, breaks nothing that we said.

What is looked up keeps no header but the path: secrets stay in the bytes, and are never logged.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from ratelimit_service.errors import RpcError, Status, WireError
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.transports.http2.fields import cut
from ratelimit_service.transports.http2.frames import Code
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.http2.whole import QUESTION_BYTES, question_in
from ratelimit_service.transports.transport import EXPIRED

MOST_KEPT: Final = 64 * 1024
"""Bytes of blocks and fields remembered per connection, as `_ENTRY` reckons them: a client has a block for each method
and timeout. Full of blocks that never come again (each with an identifier of its own), the memory is emptied and starts
anew."""

LONGEST_CACHED: Final = 1024
"""Bytes of a block that is remembered."""

_ENTRY: Final = 300
"""Bytes of a remembered block or field besides its own: keys and values of dictionaries, and the Head."""


class Head(NamedTuple):
    """What a header block asks for."""

    path: str
    streaming: bool = False
    timeout: int | None = None
    """Microseconds."""
    length: int | None = None
    """Bytes of the body, if the client says."""
    gzip: bool = False
    plain: bool = False
    """A method that answers once, a block as almost all are: neither length, nor compression, nor refusal."""
    refusal: RpcError | None = None
    """Why it cannot be a call."""
    http: bytes = b""
    """The status of HTTP for a client that does not speak gRPC."""
    bodiless: bool = False
    """Its answer may have no body: RFC 9110, 9.3.2."""
    malformed: str = ""
    """How it breaks RFC 9113, section 8."""


class Usual(NamedTuple):
    """What most calls of a client begin with, and how they are read."""

    block: bytes
    head: Head
    first: bytes
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    empty: int
    """Bytes of a question whose message has none."""


_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_NAME: Final = "the name of a header is not one (8.2.1)"
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CALL: Final = frozenset({b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"content-length"})
_OF_CONNECTION: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_GROWS: Final = re.compile(rb"\x20*[\x21-\x3f]")
_UNITS: Final = {b"H": HOUR, b"M": MINUTE, b"S": SECOND, b"m": 1000, b"u": 1}
_GRPC: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE)


class HeaderReader:
    """The blocks of one connection."""

    def __init__(self, methods: Mapping[str, bool], most_bytes: int) -> None:
        self.cache: dict[bytes, Head] = {}
        """Every block in it means the same whenever it comes."""
        self.plain: dict[bytes, Head] = {}
        """Those of them that are `plain`: the hot path asks for no other."""
        self.denial: RpcError | None = None
        """Why the client may call nothing."""
        self.usual: Usual | None = None
        """The one of those that came last."""
        self._methods = methods
        self._most_bytes = most_bytes
        self._acknowledged = False
        self._fields: dict[bytes, tuple[bytes, bytes]] = {}
        self._heads: dict[bytes, Head] = {}
        self.kept = 0
        """Bytes of all that is remembered."""
        # Of a list that is too large the rest must be decoded all the same, for the blocks to come: but not for ever.
        self._decoder = Decoder(2 * most_bytes)

    def acknowledged(self) -> None:
        """The client knows that our header table has no entries: RFC 7541, 4.2 has it shrink its own.

        Some never do (h2spec); we go on decoding for them, with the table of 4 KiB that every client may use at first,
        and look up nothing. One that has acknowledged may not grow again.
        """
        self._acknowledged = True

    def read(self, block: bytes) -> Head:
        """What it asks for; WireError when it cannot be decoded."""
        head = None if self._decoder.header_table_size else self._of_fields(block)
        if head is None:
            head = self._head(self._decode(block))
        if not self._decoder.header_table_size and len(block) <= LONGEST_CACHED:
            self._keep(len(block) + len(head.path))
            self.cache[block] = head
            if head.plain:
                self.plain[block] = head
        return head

    def _of_fields(self, block: bytes) -> Head | None:
        """What it asks for, by its fields that were seen before; None when that is not plain to see.

        With one new field in ten it takes a third of the time of decoding all.
        """
        fields = cut(block)
        if fields is None:
            return None
        wanted: list[bytes] = []
        size = regular = 0
        most = self._most_bytes
        for field in fields:
            known = self._fields.get(field)
            if known is None:
                ((name, value),) = self._decode(field)
                if _problem(name, value) or not (name in _PSEUDO or _NAME.fullmatch(name)):
                    return None
                self._keep(len(field) + len(name) + len(value))
                known = self._fields[field] = name, value
            name, value = known
            size += len(name) + len(value) + 32
            if size > most:
                return None
            if name in _PSEUDO:
                if regular:
                    return None
                wanted.append(field)
            else:
                regular += 1
                if name in _OF_CALL:
                    wanted.append(field)
        key = b"".join(wanted)
        head = self._heads.get(key)
        if head is None:
            head = self._head([self._fields.get(field) or self._decode(field)[0] for field in wanted])
            self._keep(len(key))
            self._heads[key] = head
        return head

    def usually(self, block: bytes) -> bool:
        """Make this block the usual one; False when it is not plain, or was it already."""
        head = self.plain.get(block)
        if head is None or (self.usual is not None and self.usual.block == block):
            return False
        unpack, first = question_in(len(block))
        self.usual = Usual(block, head, first, unpack, QUESTION_BYTES + len(block))
        return True

    def _keep(self, size: int) -> None:
        """Make room for an entry of so many bytes."""
        if self.kept + size + _ENTRY > MOST_KEPT:
            self.forget()
        self.kept += size + _ENTRY

    def forget(self) -> None:
        """All that is remembered: it is decoded anew when it comes again."""
        self.cache.clear()
        self.plain.clear()
        self._fields.clear()
        self._heads.clear()
        self.usual = None
        self.kept = 0

    def read_trailers(self, block: bytes) -> str:
        """How they are malformed, if they are; they tell us nothing else."""
        for name, value in self._decode(block):
            if name.startswith(b":"):
                return "trailers have a pseudo header (8.1)"
            if not _NAME.fullmatch(name):
                return _BAD_NAME
            if problem := _problem(name, value):
                return problem
        return ""

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        if self._acknowledged and _GROWS.match(block):
            raise WireError(Code.COMPRESSION_ERROR, "the header table is larger than we announced (RFC 7541, 6.3)")
        try:
            fields: list[tuple[bytes, bytes]] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            # HPACK bomb (CVE-2016-6581): a few bytes that stand for megabytes.
            problem = "the header list is far too large"
            raise WireError(Code.ENHANCE_YOUR_CALM, problem, Bound.HEADER_BLOCK) from error
        except (HPACKError, IndexError) as error:
            raise WireError(Code.COMPRESSION_ERROR, "the header block cannot be decoded (4.3)") from error
        if self.kept and self._decoder.header_table_size:
            # The client has a table again, as it may until it acknowledges ours: what is remembered could not be
            # looked up any more, because a block may add to that table, in trailers too.
            self.forget()
        return fields

    def _head(self, fields: list[tuple[bytes, bytes]]) -> Head:
        found: dict[bytes, bytes] = {}
        size = 0
        for name, value in fields:
            size += len(name) + len(value) + 32  # 6.5.2 counts a list so
            if name.startswith(b":"):
                if name not in _PSEUDO:
                    return _malformed("an unknown pseudo header (8.3)")
                if found.get(b"") is not None:
                    return _malformed("a pseudo header after other ones (8.3)")
                if name in found:
                    return _malformed("a pseudo header twice (8.3)")
            else:
                found[b""] = b""
                if not _NAME.fullmatch(name):
                    return _malformed(_BAD_NAME)
            if problem := _problem(name, value):
                return _malformed(problem)
            if name == b"content-length" and found.get(name, value) != value:
                return _malformed("content-length twice (8.1.1)")
            found[name] = value
        if not (found.get(b":method") and found.get(b":scheme") and found.get(b":path")):
            return _malformed("a pseudo header is missing (8.3.1)")
        length = found.get(b"content-length")
        if length is not None and not (length.isdigit() and len(length) < 20):
            return _malformed("content-length is not a number (8.1.1)")
        head = self._call(found)
        if size > self._most_bytes:
            refusal = f"the headers have {size} bytes, the most is {self._most_bytes}"
            head = head._replace(refusal=RpcError(Status.RESOURCE_EXHAUSTED, refusal), plain=False)
        return head if length is None else head._replace(length=int(length), plain=False)

    def _call(self, found: dict[bytes, bytes]) -> Head:
        path = found[b":path"].decode("latin-1")
        # gRPC over HTTP/2, "Requests" and "Responses".
        if found[b":method"] != b"POST":
            return Head(path, http=b"405", bodiless=found[b":method"] == b"HEAD")
        if not _GRPC.fullmatch(found.get(b"content-type", b"")):
            return Head(path, http=b"415")
        if self.denial is not None:
            return Head(path, refusal=self.denial)
        streaming = self._methods.get(path)
        if streaming is None:
            return _refused(path, Status.UNIMPLEMENTED, "unknown method")
        encoding = found.get(b"grpc-encoding", b"identity")
        if encoding not in {b"identity", b"gzip"}:
            return _refused(path, Status.UNIMPLEMENTED, "grpc-encoding is not one of identity, gzip")
        timeout = None
        if (text := found.get(b"grpc-timeout")) is not None:
            if not (match := _TIMEOUT.fullmatch(text)):
                return _refused(path, Status.INTERNAL, "grpc-timeout is not up to 8 digits and one of H, M, S, m, u, n")
            number = int(match[1])
            timeout = -(-number // 1000) if match[2] == b"n" else number * _UNITS[match[2]]
            if not timeout:
                return Head(path, refusal=EXPIRED)
        gzip = encoding == b"gzip"
        return Head(path, streaming, timeout, gzip=gzip, plain=not (streaming or gzip))


def _problem(name: bytes, value: bytes) -> str:
    if name in _OF_CONNECTION:
        return "a header of the connection (8.2.2)"
    if name == b"te" and value != b"trailers":
        return "te is not trailers (8.2.2)"
    if _BAD_VALUE.search(value):
        return "the value of a header is not one (8.2.1)"
    return ""


def _malformed(how: str) -> Head:
    return Head("", malformed=how)


def _refused(path: str, status: Status, message: str) -> Head:
    return Head(path, refusal=RpcError(status, message))

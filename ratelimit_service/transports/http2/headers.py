"""Header blocks of the client: from bytes to what a call asks for.

Theory: HPACK (RFC 7541) gives each side a dynamic table, by which equal bytes may mean different headers. After a
client's first call we announce a table of size 0. Once its encoder has shrunk its own, equal blocks have equal meaning,
so blocks are looked up by their bytes; new ones, and all until then, are decoded by the `hpack` library. A client that
makes no call is not asked to change its table. One that begins with a table size update within the 4096 bytes of RFC
9113 breaks nothing that we announced.

A client that traces sends an identifier with each call, so that no block comes twice, but all other fields do. Such a
block is split into its fields, and each field is looked up by its bytes.

The cache keeps no header value but the path, and the ids of a trace: secrets stay in the bytes of its keys, and are
never logged.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from ratelimit_service.api.trace_context import TraceContext, read_context
from ratelimit_service.errors import RpcError, Status, WireError
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from ratelimit_service.transports.http2.frames import REQUEST_OVERHEAD, Code, request_unpacker
from ratelimit_service.transports.http2.limits import MAX_CONTINUATIONS, Bound
from ratelimit_service.transports.transport import EXPIRED

MAX_CACHED: Final = 64 * 1024
"""Bytes of cached blocks and fields per connection, `_ENTRY_BYTES` included: a client has a block for each method and
timeout. A cache that is full is cleared: then its blocks were those that never come again, each with its identifier."""

MAX_CACHED_SIZE: Final = 1024
"""Bytes of the longest block that is cached."""

_ENTRY_BYTES: Final = 350
"""Memory of a cached block or field besides its own bytes: keys and values of dictionaries, and the Head."""

_CONTEXT_BYTES: Final = 350
"""Memory of a Head's own with a TraceContext, and of its two numbers."""

_REFUSAL_BYTES: Final = 450
"""Memory of an RpcError with a message of its own."""


class Head(NamedTuple):
    """The call that a header block asks for."""

    path: str
    streaming: bool = False
    timeout: int | None = None
    """Microseconds."""
    length: int | None = None
    """`content-length`, if there is one."""
    gzip: bool = False
    plain: bool = False
    """Fit for the fast path: a unary method, no `content-length`, no compression, no refusal."""
    refusal: RpcError | None = None
    """Why the call is refused."""
    http: bytes = b""
    """The HTTP status for a client that does not speak gRPC."""
    bodiless: bool = False
    """The response may have no body: RFC 9110, 9.3.2."""
    malformed: str = ""
    """How the block breaks RFC 9113, section 8."""
    context: TraceContext | None = None
    """The trace of the caller of a traced method."""


class FastBlock(NamedTuple):
    """The block that most calls of a client begin with, and how such a call is unpacked."""

    block: bytes
    head: Head
    first: bytes
    """The first five bytes of such a call."""
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    overhead: int
    """Bytes of a call with an empty message."""


_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CALL: Final = frozenset({b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"content-length"})
_OF_CONNECTION: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS: Final = {b"H": HOUR, b"M": MINUTE, b"S": SECOND, b"m": 1000, b"u": 1}
_GRPC: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE)
_TABLE_GROWS: Final = re.compile(rb"\x20*[\x21-\x3f]")
"""A block that begins with a dynamic table size update to more than 0: RFC 7541, 6.3."""


class HeaderReader:
    """Decodes and caches the header blocks of one connection."""

    def __init__(self, methods: Mapping[str, bool], max_bytes: int, traced_path: str | None = None) -> None:
        """`methods`: by path, whether it is streaming; `max_bytes`: the largest header list, as 6.5.2 counts it.

        `traced_path`: the method that needs the trace of its caller, if one does.
        """
        self._traced_path = traced_path
        self.cache: dict[bytes, Head] = {}
        self.plain: dict[bytes, Head] = {}
        """Those blocks of the cache that are `plain`."""
        self.fast: FastBlock | None = None
        """The plain block that came last."""
        self._denial: RpcError | None = None
        self._methods = methods
        self._max_bytes = max_bytes
        self._acknowledged = False
        self._fields: dict[bytes, tuple[bytes, bytes]] = {}
        self._heads: dict[bytes, Head] = {}
        """By the fields that matter to a call."""
        self.cached_bytes = 0
        # Of a list that is too large the rest must be decoded too, because it changes the table; but not without end.
        self._decoder = Decoder(2 * max_bytes)

    def deny(self, error: RpcError | None) -> None:
        """The client may call no method: `error` is the response to each of its calls. None: it may."""
        self._denial = error

    def table_acknowledged(self) -> None:
        """The client has acknowledged that our header table has size 0: now its own may not grow again.

        Some never shrink it (h2spec). For them all blocks are decoded, with the table of 4 KiB that every client may
        use at first, and nothing is cached.
        """
        self._acknowledged = True

    def read(self, block: bytes) -> Head:
        """Decode a block into the call that it asks for; WireError when it cannot be decoded."""
        head = None if self._decoder.header_table_size else self._read_fields(block)
        if head is None:
            decoded = self._decode(block)
            head = self._head(decoded)
            if self._traced_path == head.path:
                head = head._replace(context=read_context(decoded))
        if not self._decoder.header_table_size and len(block) <= MAX_CACHED_SIZE:
            self._count_cached(len(block), head)
            self.cache[block] = head
            if head.plain:
                self.plain[block] = head
        return head

    def _read_fields(self, block: bytes) -> Head | None:
        """The same by cached fields, in a third of the time if one in ten is new; None when the block needs `_head`."""
        fields = split_fields(block)
        if fields is None:
            return None
        of_call: list[bytes] = []
        size = regular = 0
        most = self._max_bytes
        for field in fields:
            known = self._fields.get(field)
            if known is None:
                decoded = self._decode(field)
                ((name, value),) = decoded
                if _problem(decoded) or (name[:1] == b":" and name not in _PSEUDO):
                    return None
                self._count_cached(len(field) + len(name) + len(value))
                known = self._fields[field] = name, value
            name, value = known
            size += len(name) + len(value) + 32
            if size > most:
                return None
            if name in _PSEUDO:
                if regular:
                    return None
                of_call.append(field)
            else:
                regular += 1
                if name in _OF_CALL:
                    of_call.append(field)
        key = b"".join(of_call)
        head = self._heads.get(key)
        if head is None:
            head = self._head([self._known(field) for field in of_call])
            self._count_cached(len(key), head)
            self._heads[key] = head
        if self._traced_path == head.path:
            head = head._replace(context=read_context(self._known(field) for field in fields))
        return head

    def _known(self, field: bytes) -> tuple[bytes, bytes]:
        return self._fields.get(field) or self._decode(field)[0]

    def use_for_fast_path(self, block: bytes) -> bool:
        """Make this block the fast one; False if it is not plain, or is the fast one already."""
        head = self.plain.get(block)
        if head is None or (self.fast is not None and self.fast.block == block):
            return False
        unpack, first = request_unpacker(len(block))
        self.fast = FastBlock(block, head, first, unpack, REQUEST_OVERHEAD + len(block))
        return True

    def _count_cached(self, size: int, head: Head | None = None) -> None:
        if head is not None:
            size += len(head.path) + (_CONTEXT_BYTES if head.context else 0) + (_REFUSAL_BYTES if head.refusal else 0)
        if self.cached_bytes + size + _ENTRY_BYTES > MAX_CACHED:
            self.clear_cache()
        self.cached_bytes += size + _ENTRY_BYTES

    def clear_cache(self) -> None:
        """Forget all blocks and fields; those that come again are decoded again."""
        self.cache.clear()
        self.plain.clear()
        self._fields.clear()
        self._heads.clear()
        self.fast = None
        self.cached_bytes = 0

    def read_trailers(self, block: bytes) -> str:
        """The problem with malformed trailers, or an empty string; their fields mean nothing to us."""
        fields = self._decode(block)
        if any(name.startswith(b":") for name, _ in fields):
            return "trailers have a pseudo header (8.1)"
        return _problem(fields)

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        if self._acknowledged and _TABLE_GROWS.match(block):
            raise WireError(Code.COMPRESSION_ERROR, "the header table is larger than we announced (RFC 7541, 6.3)")
        try:
            fields: list[tuple[bytes, bytes]] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            # HPACK bomb (CVE-2016-6581): a few bytes that stand for megabytes.
            problem = "the header list is far too large"
            raise WireError(Code.ENHANCE_YOUR_CALM, problem, Bound.HEADER_BLOCK) from error
        except (HPACKError, IndexError) as error:
            raise WireError(Code.COMPRESSION_ERROR, "the header block cannot be decoded (4.3)") from error
        if self.cached_bytes and self._decoder.header_table_size:
            # The client has a table again, as it may until it acknowledges ours. Cached blocks may no longer be looked
            # up, because a block, also of trailers, may add to that table.
            self.clear_cache()
        return fields

    def _head(self, fields: list[tuple[bytes, bytes]]) -> Head:
        found: dict[bytes, bytes] = {}
        size, regular = 0, False
        for name, value in fields:
            size += len(name) + len(value) + 32  # 6.5.2 counts a list so
            if not name.startswith(b":"):
                regular = True
                if name == b"content-length" and found.get(name, value) != value:
                    return Head("", malformed="content-length twice (8.1.1)")
            elif name not in _PSEUDO:
                return Head("", malformed="an unknown pseudo header (8.3)")
            elif regular:
                return Head("", malformed="a pseudo header after other ones (8.3)")
            elif name in found:
                return Head("", malformed="a pseudo header twice (8.3)")
            found[name] = value
        if problem := _problem(fields):
            return Head("", malformed=problem)
        if not (found.get(b":method") and found.get(b":scheme") and found.get(b":path")):
            return Head("", malformed="a pseudo header is missing (8.3.1)")
        length = found.get(b"content-length")
        if length is not None and not (length.isdigit() and len(length) < 20):
            return Head("", malformed="content-length is not a number (8.1.1)")
        head = self._call(found)
        if size > self._max_bytes:
            refusal = f"the headers have {size} bytes, the maximum is {self._max_bytes}"
            head = head._replace(refusal=RpcError(Status.RESOURCE_EXHAUSTED, refusal), plain=False)
        return head if length is None else head._replace(length=int(length), plain=False)

    def _call(self, found: dict[bytes, bytes]) -> Head:
        """The call that well-formed headers ask for, by "Requests" and "Responses" of gRPC over HTTP/2."""
        path = found[b":path"].decode("latin-1")
        if found[b":method"] != b"POST":
            return Head(path, http=b"405", bodiless=found[b":method"] == b"HEAD")
        if not _GRPC.fullmatch(found.get(b"content-type", b"")):
            return Head(path, http=b"415")
        if self._denial is not None:
            return Head(path, refusal=self._denial)
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


def _refused(path: str, status: Status, message: str) -> Head:
    return Head(path, refusal=RpcError(status, message))


def _problem(fields: list[tuple[bytes, bytes]]) -> str:
    """The problem of the first field that is malformed by itself; empty if there is none."""
    for name, value in fields:
        if name[:1] != b":" and not _NAME.fullmatch(name):
            return "the name of a header is invalid (8.2.1)"
        if name in _OF_CONNECTION:
            return "a header of the connection (8.2.2)"
        if name == b"te" and value != b"trailers":
            return "te is not trailers (8.2.2)"
        if _BAD_VALUE.search(value):
            return "the value of a header is invalid (8.2.1)"
    return ""


def split_fields(block: bytes) -> list[bytes] | None:  # noqa: PLR0912 - one loop: a function call costs as much as a field
    """The bytes of each field of a block, undecoded: RFC 7541, section 6.

    None when the block may depend on a dynamic table, or a field is longer than 253 bytes: then it must be decoded.
    """
    fields = []
    at, end = int(block[:1] == b"\x20"), len(block)  # a table size update to 0, which changes nothing
    try:
        while at < end:
            start = at
            first = block[at]
            at += 1
            if first & 0x80:  # indexed; the static table has 61 entries
                if not 0x80 < first <= 0x80 + 61:
                    return None
            else:
                if first & 0x40:  # literal with incremental indexing
                    name, largest = first & 0x3F, 0x3F
                elif first & 0x20:  # a table size update
                    return None
                else:  # literal without indexing
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


class HeaderBlock:
    """A header block of which CONTINUATION frames are missing: 6.2 and 6.10."""

    __slots__ = ("_continuations", "bytes", "depends_on_itself", "ended", "number")

    def __init__(self, number: int, payload: bytes, *, ended: bool, depends_on_itself: bool) -> None:
        self.number = number
        """Of its stream."""
        self.bytes = bytearray(payload)
        self.ended = ended
        """The stream ends with it."""
        self.depends_on_itself = depends_on_itself
        """Its stream does, which RFC 7540, 5.3.1 forbids."""
        self._continuations = 0

    def extend(self, payload: bytes) -> None:
        """CONTINUATION has come; WireError when there are too many."""
        self._continuations += 1
        if self._continuations > MAX_CONTINUATIONS:
            problem = "a header block has too many CONTINUATION frames"
            raise WireError(Code.ENHANCE_YOUR_CALM, problem, Bound.CONTINUATIONS)
        self.bytes += payload

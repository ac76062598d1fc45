"""A resource of xDS as a document of rules: a `RateLimitConfig` message -> a tree of nodes that know their paths.

The message has envoyproxy's options alone. Ours stand in the metadata of a descriptor, in a struct with the key `OWN`:
those of a descriptor and of its rate_limit side by side, which take the place of what the message says; and, in a
descriptor of the first level, a struct `domain` with those of the domain. Other metadata is what `metadata` is in YAML.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct
from google.protobuf.struct_pb2 import Value as Any

from ratelimit_service.api.generated.ratelimit.config.ratelimit.v3.rls_conf_pb2 import (
    RateLimitDescriptor,
    RateLimitPolicy,
    RateLimitUnit,
)
from ratelimit_service.rules.problems import Position, Report
from ratelimit_service.rules.sources.xds.wire import fields_of
from ratelimit_service.rules.syntax.document import Field, Scalar, Value, YamlList, YamlMap, YamlNode, printed
from ratelimit_service.rules.syntax.options import BY_MAP, MapType
from ratelimit_service.settings.fields import SourceKind

OWN: Final = "ratelimit_service"
"""The key of our options in the metadata of a descriptor."""

MAX_NODES: Final = 2_000_000
"""As many as a rules file may have."""

_OF_MESSAGE: Final = frozenset({"key", "value", "rate_limit", "descriptors", "metadata"})
"""Options of a descriptor that the message itself has."""

_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("concurrency", "allow", "deny", "unlimited"), ("unit", "requests_per_unit")),
    "calendar": ("unit",),
}
"""By an option of ours, the fields of the message that it takes the place of: a message cannot leave a number out."""

Fields = dict[str, Field]


@dataclass(frozen=True, slots=True)
class XdsResource:
    """One resource: the name for messages, and the bytes of its `RateLimitConfig`."""

    name: str
    text: bytes
    kind: ClassVar[str] = "xds"
    source: ClassVar[SourceKind] = SourceKind.XDS

    def nodes(self, report: Report) -> YamlNode:
        """The tree of the message. Raises RulesError if the bytes are no such message, or hold too many nodes."""
        return _Tree(report).root(self.text)


class _Paths(Mapping[int, str]):
    """The path of each node by its number: kept as the number of the node around it and the last step."""

    def __init__(self) -> None:
        self._around: list[int] = []
        self._steps: list[str | int] = []

    def add(self, around: int, step: str | int) -> int:
        """The number of a new node."""
        self._around.append(around)
        self._steps.append(step)
        return len(self._steps) - 1

    def __getitem__(self, number: int) -> str:
        steps: list[str] = []
        while number:
            steps.append(str(self._steps[number]))
            number = self._around[number]
        return " /" + "/".join(reversed(steps)) if steps else ""

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


class _Tree:
    """Makes the nodes of one message."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._paths = _Paths()
        self._of_domain: Fields = {}
        report.pointers = self._paths

    def root(self, text: bytes) -> YamlMap:
        number = self._number(0, "")
        domain = ""
        descriptors = YamlList(self._number(number, "descriptors"), 0, [])
        fields: Fields = {}
        try:
            for field, value in fields_of(text):
                if field == 2:
                    domain = bytes(value).decode()
                elif field == 3:
                    descriptors.items.append(self._descriptor(value, descriptors))
        except ValueError as error:
            self._report.stop(Position(0, 0), f"is not a RateLimitConfig: {error}")
        self._put(fields, "domain", self._scalar(number, "domain", domain))
        self._put(fields, "descriptors", descriptors)
        return YamlMap(number, 0, fields | self._of_domain)

    def _descriptor(self, text: bytes, among: YamlList) -> YamlMap:
        """A descriptor of the first level, decoded by itself: a call into protobuf's C code stops all threads."""
        number = self._number(among.line, len(among.items))
        try:
            message = RateLimitDescriptor.FromString(bytes(text))
        except DecodeError as error:
            self._report.stop(Position(number, 0), f"is not a RateLimitDescriptor: {error}")
        return self._map(message, number, first=True)

    def _map(self, message: RateLimitDescriptor, number: int, *, first: bool = False) -> YamlMap:
        fields: Fields = {}
        self._put(fields, "key", self._scalar(number, "key", message.key))
        if message.value:
            self._put(fields, "value", self._scalar(number, "value", message.value))
        limit = self._limit(message.rate_limit, number) if message.HasField("rate_limit") else None
        for flag in ("shadow_mode", "detailed_metric", "quota_mode"):
            if getattr(message, flag):
                self._put(fields, flag, self._scalar(number, flag, True))
        if message.HasField("metadata"):
            limit = self._metadata(message.metadata, number, fields, limit, first=first)
        if limit is not None:
            self._put(fields, "rate_limit", limit)
        if message.descriptors:
            below = YamlList(self._number(number, "descriptors"), 0, [])
            for index, each in enumerate(message.descriptors):
                below.items.append(self._map(each, self._number(below.line, index)))
            self._put(fields, "descriptors", below)
        return YamlMap(number, 0, fields)

    def _limit(self, policy: RateLimitPolicy, around: int) -> YamlMap:
        limit = YamlMap(self._number(around, "rate_limit"), 0, {})
        add = self._put
        if policy.unlimited:
            add(limit.fields, "unlimited", self._scalar(limit.line, "unlimited", True))
        else:  # what an unlimited one says beside it, envoyproxy does not look at
            add(
                limit.fields,
                "requests_per_unit",
                self._scalar(limit.line, "requests_per_unit", policy.requests_per_unit),
            )
        if policy.unit or not policy.unlimited:
            add(limit.fields, "unit", self._scalar(limit.line, "unit", _unit(policy.unit)))
        if policy.name:
            add(limit.fields, "name", self._scalar(limit.line, "name", policy.name))
        if policy.replaces:
            replaces = YamlList(self._number(limit.line, "replaces"), 0, [])
            for index, each in enumerate(policy.replaces):
                entry = YamlMap(self._number(replaces.line, index), 0, {})
                add(entry.fields, "name", self._scalar(entry.line, "name", each.name))
                replaces.items.append(entry)
            add(limit.fields, "replaces", replaces)
        return limit

    def _metadata(
        self, metadata: Struct, around: int, fields: Fields, limit: YamlMap | None, *, first: bool
    ) -> YamlMap | None:
        """Add what the metadata says to the fields of the descriptor, and to its limit, which is returned."""
        node = self._struct(metadata, around, "metadata")
        own = node.fields.pop(OWN, None)
        if node.fields:
            self._put(fields, "metadata", node)
        if own is None:
            return limit
        if not isinstance(own.value, YamlMap):
            self._report.add(own.value, f"{OWN} must be a struct of options of this service")
            return limit
        options = own.value.fields
        for name, option in options.items():
            if name == "domain":
                self._domain_options(option, first=first)
            elif name in _OF_MESSAGE:
                self._report.add(option.value, f"{name} stands in the descriptor itself, not in its metadata")
            elif name in BY_MAP[MapType.DESCRIPTOR]:
                fields[name] = option
            else:  # what is unknown too: the error has its path
                limit = limit or YamlMap(own.value.line, 0, {})
                for other in _INSTEAD.get(name, ()):
                    if other not in options:
                        limit.fields.pop(other, None)
                limit.fields[name] = option
        # A message for envoyproxy too has a limit beside our list of them.
        return None if "rate_limits" in options else limit

    def _domain_options(self, option: Field, *, first: bool) -> None:
        if not first:
            self._report.add(option.value, "the options of the domain belong in a descriptor of the first level")
        elif not isinstance(option.value, YamlMap):
            self._report.add(option.value, "domain must be a struct of options of the domain")
        else:
            for name, given in option.value.fields.items():
                if name in ("domain", "descriptors"):
                    self._report.add(given.value, f"{name} stands in the resource itself, not in metadata")
                elif (before := self._of_domain.setdefault(name, given)) is not given:
                    at = self._report.within(before.value)
                    self._report.add(given.value, f"{name} of the domain is given twice, first at {at}")

    def _struct(self, struct: Struct, around: int, step: str | int) -> YamlMap:
        node = YamlMap(self._number(around, step), 0, {})
        for name in sorted(struct.fields):  # the order of a map says nothing, and is another one each time
            self._put(node.fields, name, self._value(struct.fields[name], node.line, name))
        return node

    def _value(self, value: Any, around: int, step: str | int) -> YamlNode:
        match value.WhichOneof("kind"):
            case "struct_value":
                return self._struct(value.struct_value, around, step)
            case "list_value":
                node = YamlList(self._number(around, step), 0, [])
                node.items.extend(
                    self._value(each, node.line, index) for index, each in enumerate(value.list_value.values)
                )
                return node
            case "number_value":
                number = value.number_value
                return self._scalar(around, step, int(number) if number.is_integer() else number)
            case "string_value":
                return self._scalar(around, step, value.string_value)
            case "bool_value":
                return self._scalar(around, step, value.bool_value)
        return self._scalar(around, step, None)

    def _scalar(self, around: int, step: str | int, value: Value) -> Scalar:
        text = json.dumps(value) if value is None or isinstance(value, bool) else printed(value)
        return Scalar(self._number(around, step), 0, text, value)

    def _number(self, around: int, step: str | int) -> int:
        if len(self._paths) >= MAX_NODES:
            self._report.stop(Position(0, 0), f"has more than {MAX_NODES:,} nodes; split it")
        return self._paths.add(around, step)

    def _put(self, fields: Fields, name: str, node: YamlNode) -> None:
        fields[name] = Field(Scalar(node.line, 0, name, name), node)


def _unit(unit: int) -> str:
    """The name of the unit as a rules file has it; of a number without a name, that number."""
    try:
        name = RateLimitUnit.Name(unit)  # type: ignore[arg-type]  # of an open enum any number may come
    except ValueError:
        return str(unit)
    return name.lower() if unit else name

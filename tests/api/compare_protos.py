"""Compares our descriptors, a serialized FileDescriptorSet on stdin, with a peer's; prints each difference.

    python compare_protos.py [--whole FILE]... [--newer NAME]... MODULE...      the peer: generated modules
    python compare_protos.py [--whole FILE]... [--newer NAME]... --binary PATH  the peer: a program in C++ or Go

A process of its own: ours and theirs bear the same names, and a process has one pool of descriptors. A type that we
state, we state in full; in a `--whole` file the peer may have no further types. `--newer` names what only we have yet.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor

Stated = Descriptor | EnumDescriptor | ServiceDescriptor
Facts = dict[str, str]

TYPES: dict[int, str] = {number: name for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()}

# The tags of a file descriptor: name, package, dependency, message, enum, service, extension, options, syntax.
SYNTAX = 0x62
FILE_TAGS = frozenset(b"\x0a\x12\x1a\x22\x2a\x32\x3a\x42\x62")


def main() -> None:
    """Exits 0 when nothing differs, 1 when something does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="append", default=[], metavar="FILE")
    parser.add_argument("--newer", action="append", default=[], metavar="NAME")
    parser.add_argument("--binary", type=Path, metavar="PATH")
    parser.add_argument("--below", default="", metavar="FOLDER/", help="where the program has the files")
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    arguments = parser.parse_args()

    ours = our_types(descriptor_pb2.FileDescriptorSet.FromString(sys.stdin.buffer.read()))
    if arguments.binary:
        files = sorted({f"{arguments.below}{stated.file.name}" for stated in ours})
        theirs = types_of_binary(arguments.binary.read_bytes(), files)
    else:
        theirs = [stated for name in arguments.modules for stated in top(importlib.import_module(name).DESCRIPTOR)]

    whole = set(arguments.whole)
    names = {stated.full_name for stated in ours}
    mine = facts_of(ours)
    peers = facts_of([stated for stated in theirs if stated.full_name in names or stated.file.name in whole])
    differences = [
        f"{name}: ours {mine.get(name)}, theirs {peers.get(name)}"
        for name in sorted(mine.keys() | peers.keys())
        if mine.get(name) != peers.get(name) and not (name in arguments.newer and name not in peers)
    ]
    print("\n".join(differences) or f"{len(mine)} facts agree")
    sys.exit(bool(differences))


def our_types(files: descriptor_pb2.FileDescriptorSet) -> list[Stated]:
    """What the set states, leaving google.protobuf out."""
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return [
        stated
        for file in files.file
        if not file.name.startswith("google/")
        for stated in top(pool.FindFileByName(file.name))
    ]


def types_of_binary(program: bytes, files: list[str]) -> list[Stated]:
    """What the named files state, by the descriptors that protobuf's C++ and Go code carries as bytes."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name not in added:
            added.add(name)
            file = embedded(program, name)
            for dependency in file.dependency:
                add(dependency)
            pool.Add(file)

    for name in files:
        add(name)
    return [stated for name in files for stated in top(pool.FindFileByName(name))]


def embedded(program: bytes, name: str) -> descriptor_pb2.FileDescriptorProto:
    """The file's descriptor: it begins with its own name and ends with its syntax, or where bytes are no fields.

    Behind it there may be another one.
    """
    begin = program.find(bytes([0x0A, len(name)]) + name.encode() + b"\x12")
    if begin < 0:
        sys.exit(f"{name} is not in the program")
    end = begin
    while program[end] in FILE_TAGS:
        tag = program[end]
        size, body = read_varint(program, end + 1)
        end = body + size
        if tag == SYNTAX:
            break
    return descriptor_pb2.FileDescriptorProto.FromString(program[begin:end])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at this place, and the place after it."""
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


def top(file: FileDescriptor) -> Iterator[Stated]:
    """The messages, enums and services that stand at the top of a file."""
    yield from file.message_types_by_name.values()
    yield from file.enum_types_by_name.values()
    yield from file.services_by_name.values()


def facts_of(types: list[Stated]) -> Facts:
    """Everything that these types say about the wire or about JSON: full name -> what is true of it."""
    return {name: fact for stated in types for name, fact in facts(stated)}


def facts(stated: Stated) -> Iterator[tuple[str, str]]:
    """The facts of one type and of all within it."""
    match stated:
        case EnumDescriptor():
            yield stated.full_name, "enum"
            for value in stated.values:
                yield f"{stated.full_name}.{value.name}", f"value {value.number}"
        case ServiceDescriptor():
            yield stated.full_name, "service"
            for method in stated.methods:
                asks = "stream " * method.client_streaming + method.input_type.full_name
                answers = "stream " * method.server_streaming + method.output_type.full_name
                yield method.full_name, f"method ({asks}) returns ({answers})"
        case Descriptor():
            yield stated.full_name, "map entry" if stated.GetOptions().map_entry else "message"
            for field in stated.fields:
                yield field.full_name, field_fact(field)
            for oneof in stated.oneofs:
                yield oneof.full_name, f"oneof of {sorted(field.name for field in oneof.fields)}"
            for message in stated.nested_types:
                yield from facts(message)
            for enum in stated.enum_types:
                yield from facts(enum)


def field_fact(field: FieldDescriptor) -> str:
    """Number, label, type, packing, presence, oneof (a proto3 `optional` shows as one of its own) and JSON name."""
    typed = field.message_type or field.enum_type
    words = [
        f"field {field.number}",
        "repeated" * field.is_repeated,
        TYPES[field.type],
        typed.full_name if typed else "",
        "packed" * field.is_packed,
        "with presence" * field.has_presence,
        f"in oneof {field.containing_oneof.name}" if field.containing_oneof else "",
        f"JSON {field.json_name}",
    ]
    return " ".join(word for word in words if word)


if __name__ == "__main__":
    main()

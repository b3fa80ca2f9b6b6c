"""One state in one file: a safetensors file whose header also says what it is and what its bytes must add up to.

Rules: a file is written under another name and renamed, so that one with its own name is whole; header and data carry
checksums (CRC-32, for damage and not for malice), so that one which has changed since is noticed. Tensors come in as
memory, and any safetensors reader reads them back. There is no `fsync`: after a power cut a file may be damaged, and
is noticed. What is worth a file is decided in `disk.py`.
"""
from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

BLOCK_BYTES = 4 << 20
"""The data is written and checked in blocks of this size; each has its own checksum."""
MOST_HEADER_BYTES = 64 << 20
_NO_CHECK = "0" * 8
_FACTS, _BLOCKS, _HEAD = "__metadata__", "block_checks", "head_check"


class Damaged(ValueError):
    """A file that is not what was written."""


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. `dtype` is safetensors' name for it; `pieces` are its bytes in order, flat."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return sum(len(piece) for piece in self.pieces)


@dataclass(frozen=True)
class Header:
    """What a file says of itself. `spans`: each tensor's first and last byte in the data, which begins at `data_at`."""

    facts: Mapping[str, str]
    spans: Mapping[str, tuple[int, int]]
    data_at: int
    checks: tuple[int, ...]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, facts: Mapping[str, str], tensors: Sequence[Tensor]) -> int:
    """Write a new file that only its owner can read; returns its size in bytes. Raises OSError, and leaves what it wrote."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(_empty_head(facts, tensors))
        checks = [_write_block(file, block) for block in _in_blocks(piece for tensor in tensors for piece in tensor.pieces)]
        file.seek(0)
        file.write(_head(facts, tensors, checks))  # of the same length
        return os.fstat(file.fileno()).st_size


def size_bytes(facts: Mapping[str, str], tensors: Sequence[Tensor]) -> int:
    """How large the file will be."""
    return len(_empty_head(facts, tensors)) + sum(tensor.nbytes for tensor in tensors)


def _empty_head(facts: Mapping[str, str], tensors: Sequence[Tensor]) -> bytes:
    return _head(facts, tensors, [0] * -(-sum(tensor.nbytes for tensor in tensors) // BLOCK_BYTES))


def _head(facts: Mapping[str, str], tensors: Sequence[Tensor], checks: Sequence[int]) -> bytes:
    described: dict[str, Any] = {}
    at = 0
    for tensor in tensors:
        described[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (at, at + tensor.nbytes)}
        at += tensor.nbytes

    def text(check: str) -> bytes:
        own = {**facts, _BLOCKS: "".join(f"{each:08x}" for each in checks), _HEAD: check}
        return json.dumps({_FACTS: own, **described}, separators=(",", ":")).encode()

    body = text(f"{zlib.crc32(text(_NO_CHECK)):08x}")
    body += b" " * (-len(body) % 8)
    return struct.pack("<Q", len(body)) + body


def _in_blocks(pieces: Iterator[memoryview]) -> Iterator[list[memoryview]]:
    """The same bytes in lists that have `BLOCK_BYTES` together."""
    block: list[memoryview] = []
    room = BLOCK_BYTES
    for piece in pieces:
        while piece:
            block.append(piece[:room])
            piece, room = piece[len(block[-1]):], room - len(block[-1])
            if not room:
                yield block
                block, room = [], BLOCK_BYTES
    if block:
        yield block


def _write_block(file: BinaryIO, block: list[memoryview]) -> int:
    check = 0
    for part in block:
        check = zlib.crc32(part, check)
        while part:  # an unbuffered file may take less than it is given
            part = part[file.write(part):]
    return check


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def read_header(path: Path) -> Header:
    """What the file says of itself, checked. Raises `Damaged`, OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MOST_HEADER_BYTES or len(body := file.read(length)) < length:
            raise Damaged(f"{path.name} is cut off")
        held_bytes = os.fstat(file.fileno()).st_size
    try:
        described = json.loads(body)
        facts = described.pop(_FACTS)
        said, blocks = facts.pop(_HEAD), facts.pop(_BLOCKS)
        spans = {name: tuple(each["data_offsets"]) for name, each in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path.name} has no header of ours") from error
    mark = f'"{_HEAD}":"'.encode()
    unchecked = body.rstrip(b" ").replace(mark + str(said).encode(), mark + _NO_CHECK.encode())
    if said != f"{zlib.crc32(unchecked):08x}":
        raise Damaged(f"the header of {path.name} has changed")
    if held_bytes != 8 + length + max((end for _, end in spans.values()), default=0):
        raise Damaged(f"{path.name} is cut off")
    return Header(facts, spans, 8 + length, tuple(int(blocks[at:at + 8], 16) for at in range(0, len(blocks), 8)))


def read_bytes(path: Path, header: Header, name: str) -> bytes:
    """One tensor's bytes, unchecked. Raises `Damaged`, OSError."""
    if name not in header.spans:
        raise Damaged(f"{path.name} has no {name}")
    begin, end = header.spans[name]
    with path.open("rb") as file:
        file.seek(header.data_at + begin)
        return file.read(end - begin)


def block_is_right(path: Path, header: Header, number: int) -> bool:
    """Whether one block of the data is what was written. Blocks may be asked for in several threads. Raises OSError."""
    with path.open("rb") as file:
        file.seek(header.data_at + number * BLOCK_BYTES)
        return zlib.crc32(file.read(BLOCK_BYTES)) == header.checks[number]

"""One meaning, one hash (OP-42, R-097): how two requests are found to say the same thing.

Keys sorted by code point, arrays in their order, strings as they are (no Unicode normalization,
only what JSON must escape is escaped), numbers as exact decimals, compact UTF-8. The frozen pairs
in `schemas/vectors/canonical.json` define it for every language (INV-30).
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import orjson

from .strict_json import canonical_text

HASH_VERSION: Final = b"orbit.semantic.v1\n"


def canonical_json(data: bytes) -> bytes:
    """The canonical text of one business value; raises JsonError for what is not acceptable."""
    return canonical_text(data)


def semantic_hash(
    operation: str, parts: Mapping[str, object], json_parts: Mapping[str, bytes]
) -> bytes:
    """SHA-256 (32 bytes) over a version tag, the operation's name and one canonical object.

    `parts` are values with defaults filled in: strings, integers, booleans and objects of these;
    `json_parts` are business values as accepted. The names of the two must not overlap. Raises
    JsonError if a business value is not acceptable.
    """
    members: dict[str, object] = dict(parts)
    for name, data in json_parts.items():
        members[name] = orjson.Fragment(canonical_text(data))
    text = orjson.dumps(members, option=orjson.OPT_SORT_KEYS)
    return sha256(HASH_VERSION + operation.encode() + b"\n" + text).digest()

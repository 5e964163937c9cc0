"""A second, slow reading of the contract: the JSON Schema, and the runtime's rules on plain json.

Nothing here comes from `orbit_sdk`. `accepts` is the verdict that the frame decoders must share.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs

Direction = Literal["clientFrame", "serverFrame"]
Version = Literal["1", "2"]

SCHEMAS = Path(__file__).parents[2] / "schemas"

FRAME_BYTES = 1024 * 1024
VALUE_BYTES = 256 * 1024
DEPTHS = {"1": 64, "2": 66}
NUMBER_CHARS = 64
DECIMAL_CHARS = 1024

TIME_FIELDS = re.compile(r"\A(?:server_time|lease_until|.*_at)\Z")
BUSINESS_FIELDS = ("payload", "result")
HOLDERS = ("body", "task", "items", "assignments")


def _validator(version: Version, direction: Direction) -> Any:
    written = json.loads((SCHEMAS / f"worker.v{version}.json").read_text())
    schema = {**written, "$ref": f"#/$defs/{direction}"}
    del schema["oneOf"], schema["$id"]
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)


VERSIONS: tuple[Version, ...] = ("1", "2")
DIRECTIONS: tuple[Direction, ...] = ("clientFrame", "serverFrame")
VALIDATORS = {(v, d): _validator(v, d) for v in VERSIONS for d in DIRECTIONS}


class Broken(Exception):
    """A runtime rule is broken."""


class Written(float):
    """A number with a fraction or an exponent."""


def accepts(text: str | bytes, direction: Direction, version: Version = "1") -> bool:
    """Whether the text is a frame of that direction."""
    try:
        frame = read(text, DEPTHS[version])
        check_business(frame, json_text(text))
        check_strings(frame)
    except Broken:
        return False
    return bool(VALIDATORS[version, direction].is_valid(clamped(frame)))


def readable_message_id(text: str | bytes, version: Version = "1") -> str | None:
    """The id to answer to: the only one at the top of a text that is JSON at all."""
    try:
        source = json_text(text)
        if depth(source) > DEPTHS[version]:
            return None
        top = json.loads(source, object_pairs_hook=tuple, parse_int=str, parse_float=str)
    except (Broken, ValueError):
        return None
    found = [value for key, value in top if key == "message_id"] if isinstance(top, tuple) else []
    if len(found) == 1 and isinstance(found[0], str) and re.fullmatch("[0-9a-f]{32}", found[0]):
        return found[0]
    return None


def json_text(text: str | bytes) -> str:
    try:
        data = text if isinstance(text, bytes) else text.encode()
        if len(data) > FRAME_BYTES:
            raise Broken("size")
        return data.decode()
    except UnicodeError:
        raise Broken("not UTF-8") from None


def read(text: str | bytes, depth_max: int) -> Any:
    """The value of a strict JSON text: unique keys, real numbers, whole characters."""
    source = json_text(text)
    if depth(source) > depth_max:
        raise Broken("depth")
    try:
        value = json.loads(
            source,
            object_pairs_hook=unique,
            parse_int=integer,
            parse_float=fraction,
            parse_constant=constant,
        )
    except ValueError:
        raise Broken("not JSON") from None
    if any("\ud800" <= char <= "\udfff" for string in strings_of(value) for char in string):
        raise Broken("half a surrogate pair")
    return value


def depth(source: str) -> int:
    deepest = level = 0
    in_string = escaped = False
    for char in source:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            level += 1
            deepest = max(deepest, level)
        elif char in "]}":
            level -= 1
    return deepest


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if any(names.count(name) > 1 for name in names):
        raise Broken("repeated key")
    return dict(pairs)


def integer(text: str) -> int:
    if len(text) > NUMBER_CHARS:
        raise Broken("long number")
    return int(text)


def fraction(text: str) -> Written:
    if len(text) > NUMBER_CHARS:
        raise Broken("long number")
    if decimal_chars(text) > DECIMAL_CHARS:
        raise Broken("number out of range")
    return Written(0.5)


def constant(name: str) -> Any:
    raise Broken(name)


def decimal_chars(text: str) -> int:
    """Characters of the number written out, by shifting the point of its significant digits."""
    match = re.fullmatch(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", text)
    assert match
    sign, whole, after, exponent = match.groups("")
    digits = (whole + after).lstrip("0")
    places = len(after) - int(exponent or "0")  # digits behind the point
    while digits.endswith("0"):
        digits = digits[:-1]
        places -= 1
    if not digits:
        return 1
    if places <= 0:
        return len(sign) + len(digits) - places
    return len(sign) + max(len(digits) - places, 1) + 1 + places


def business_values(frame: Any, source: str) -> list[tuple[Any, str]]:
    """Every business value of a frame with its text: of its body, its items, their tasks."""
    found = []
    holders = [(frame, 0)]
    while holders:
        holder, at = holders.pop()
        if not isinstance(holder, dict | list):
            continue
        for name, (start, end) in spans(source, at).items():
            value = holder[name]  # type: ignore[index]
            if name in BUSINESS_FIELDS:
                found.append((value, source[start:end]))
            elif isinstance(name, int) or name in HOLDERS:
                holders.append((value, start))
    return found


def spans(source: str, at: int) -> dict[str | int, tuple[int, int]]:
    """Where the members of the object, or the items of the array, that starts here are."""
    decoder = json.JSONDecoder()
    found: dict[str | int, tuple[int, int]] = {}
    at = skip(source, at)
    closing = {"{": "}", "[": "]"}.get(source[at])
    if closing is None:
        return found
    at = skip(source, at + 1)
    while source[at] != closing:
        name: str | int = len(found)
        if closing == "}":
            name, at = decoder.raw_decode(source, at)
            at = skip(source, skip(source, at) + 1)
        _, end = decoder.raw_decode(source, at)
        found[name] = (at, end)
        at = skip(source, end)
        if source[at] == ",":
            at = skip(source, at + 1)
    return found


def skip(source: str, at: int) -> int:
    while source[at] in " \t\r\n":
        at += 1
    return at


def check_business(frame: Any, source: str) -> None:
    for value, text in business_values(frame, source):
        if value is None or len(text.encode()) > VALUE_BYTES:
            raise Broken("business value")


def outside_business(frame: Any) -> Any:
    """The frame without its business values."""
    if isinstance(frame, dict):
        return {
            key: True if key in BUSINESS_FIELDS and value is not None else outside_business(value)
            for key, value in frame.items()
        }
    if isinstance(frame, list):
        return [outside_business(value) for value in frame]
    return frame


def check_strings(frame: Any) -> None:
    """No U+0000 outside business values, and only instants that exist."""
    plain = outside_business(frame)
    if any("\0" in string for string in strings_of(plain)):
        raise Broken("U+0000")
    for holder in objects_of(plain):
        for key, value in holder.items():
            if isinstance(value, Written):
                raise Broken("integer written as a fraction")
            if TIME_FIELDS.match(key) and isinstance(value, str) and impossible(value):
                raise Broken("no instant")


def impossible(time: str) -> bool:
    """Year 0 and leap seconds: RFC 3339 has them, no Python or Postgres instant does."""
    return time.startswith("0000") or time[17:19] == "60"


def strings_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [string for item in value for string in strings_of(item)]
    if isinstance(value, dict):
        return [*value, *strings_of(list(value.values()))]
    return []


def objects_of(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for item in value for found in objects_of(item)]
    if isinstance(value, dict):
        return [value, *objects_of(list(value.values()))]
    return []


def clamped(value: Any) -> Any:
    """The same for a validator that holds 64-bit integers: no bound of the schema is near."""
    if isinstance(value, dict):
        return {key: clamped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clamped(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(10**18), min(value, 10**18))
    return float(value) if isinstance(value, Written) else value

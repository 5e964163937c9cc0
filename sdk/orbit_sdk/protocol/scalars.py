"""The text forms a wire value may have besides an id and a time: uint64, secret, token.

Each test is exact for any text: the end of a pattern is the end of the text, so a trailing newline
is refused.
"""

import re
from typing import Final

UINT64_MAX: Final = 18_446_744_073_709_551_615
_UINT64_MAX_TEXT: Final = str(UINT64_MAX)
_SECRET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_SECRET_LAST: Final = frozenset("AEIMQUYcgkosw048")

TOKEN_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9_.:-]*"
_token = re.compile(TOKEN_PATTERN).fullmatch
_tokens3 = re.compile(f"{TOKEN_PATTERN}\n{TOKEN_PATTERN}\n{TOKEN_PATTERN}").fullmatch


def is_uint64(text: str) -> bool:
    """Whether the text is a canonical decimal from 1 to 2**64 - 1 (R-002)."""
    if not (text.isascii() and text.isdecimal()) or text[0] == "0":
        return False
    return len(text) < 20 or (len(text) == 20 and text <= _UINT64_MAX_TEXT)


def is_secret(text: str) -> bool:
    """Whether the text is 32 bytes in strict unpadded base64url (R-003)."""
    return (
        len(text) == 43
        and text[42] in _SECRET_LAST
        and text.isascii()
        and not text.encode().translate(None, _SECRET)
    )


def is_token(text: str, chars_max: int) -> bool:
    """Whether the text is a name of R-006 with at most so many characters."""
    return len(text) <= chars_max and _token(text) is not None


def are_tokens(first: str, second: str, third: str) -> bool:
    """Whether all three texts are names of R-006, lengths aside."""
    return _tokens3(f"{first}\n{second}\n{third}") is not None

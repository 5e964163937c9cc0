"""The one Python reading of the contracts in `schemas/`, used by the server and by the SDK.

Everything here is pure: bytes or values in, values or bytes out; no IO, no clock, no randomness.
Import the module that holds the word you need (`frames`, `bodies`, `states`, `errors`, ...).
"""

"""A black-box test of the contract: is what answers at this URL a server of these protocols?

`orbit conformance` runs it. It is a second reading of the contract and shares no code with the
SDK's own: frames are JSON written by hand, and each frame of the server is held against a copy of
the schema. Each check names the requirement (R-) or the decision (OP-) that it stands for.
"""

"""Deliberate mistakes in the protocol: each must be found, by the invariant that it breaks."""

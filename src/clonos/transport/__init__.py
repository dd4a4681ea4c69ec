"""Streams between processes: data channels and the control stream, authenticated."""

"""A prompt is changed, and what would have come of it is seen before anybody pays for it."""

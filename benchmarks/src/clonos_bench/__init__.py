"""Measurements: what a failure costs, what protecting against it costs, and how fast rows move."""

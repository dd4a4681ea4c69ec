"""Rows that belong together in time, and what is made of them."""

"""What one can do with Clonos; run from the root of a checkout: ``python -m examples.NAME``."""

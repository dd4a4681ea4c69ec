"""A day of payments, a paid model, and another prompt that is tried on the past first."""

"""The operators that a task's chain is made of, and the chain itself.

One operator per file. Each is a deterministic function of (state, event) over Arrow batches;
:mod:`clonos.operators.chain` joins them into the program that the core's automaton runs.
"""

"""The other execution: operations as Spark's own DataFrames.

``plan.py`` goes through the graph; ``stateless.py``, ``windows.py``, ``joins.py`` and
``sources.py`` say what becomes of each operation, or why nothing does. Only PySpark's public
DataFrame API is used.
"""

"""The other way to run a job: its operations as Spark's own DataFrames.

``plan.py`` goes through the graph; ``stateless.py``, ``windows.py``, ``joins.py`` and
``sources.py`` translate each operation, or say why it has no equivalent. Only PySpark's public
DataFrame API is used.
"""

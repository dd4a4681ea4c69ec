"""A running job as one sees it: one snapshot, shown as a page, in a terminal, and in a notebook.

The driver's loop knows nothing of it. It publishes immutable views anyway
(:class:`~clonos.nodes.views.DriverView`), and what is shown is made of the newest, when somebody
looks, in the looker's thread.
"""

"""Shows a running job: one snapshot, as a web page, in a terminal, or in a notebook.

The driver's loop knows nothing of it. It publishes immutable views anyway
(:class:`~clonos.nodes.views.DriverView`), and what is shown is made of the newest, when somebody
looks, in the looker's thread.
"""

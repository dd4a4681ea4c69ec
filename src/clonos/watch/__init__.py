"""Shows a running job: one snapshot, as a web page, in a terminal, or in a notebook.

The driver's loop is not involved. It publishes immutable views anyway
(:class:`~clonos.nodes.views.DriverView`), and the newest one is rendered on request, in the
requesting thread.
"""

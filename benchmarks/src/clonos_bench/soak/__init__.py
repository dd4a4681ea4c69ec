"""A long run of a job that asks a fickle service, beside faults drawn from a seed, and its verdict.

``run`` supervises (``clonos-bench soak``); ``driver`` is the process that it starts, and starts
again: the driver of the job in ``job``, with the faults of ``faults``. ``service`` is asked by the
job and writes down what it has answered; from that, ``verdict`` judges what was delivered.
"""

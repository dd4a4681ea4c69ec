"""Another graph continues from a checkpoint: other parallelism or operators, with the state kept.

Only a job that has settled can be upgraded: no items are on their way, and no log goes beyond a
floor. The state of its tasks is redistributed to the tasks of the new plan. One record of the
journal puts the new plan in force.
"""

"""Another graph goes on with a checkpoint: other parallelism, other operators, state kept.

Only a job that has settled can be upgraded: nothing is on its way, and no log goes beyond a floor.
What its tasks have kept is shared out anew to the tasks of the new plan; one record of the journal
says that the new plan counts.
"""

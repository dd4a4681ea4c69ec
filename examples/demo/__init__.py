"""The demo: a job that calls a service which changes its mind, and a judge who does not ask us."""

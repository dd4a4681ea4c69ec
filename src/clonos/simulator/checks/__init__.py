"""What must hold: while a job runs, of every step, and when it is done."""

"""What runs in a slot: the loop that feeds a task's automaton and carries out its actions."""

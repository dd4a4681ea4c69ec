"""A slot's adapters: the loop that feeds its node with events and carries out its actions."""

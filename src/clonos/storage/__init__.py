"""What outlives a process: the house-keeper's journal, layers, and delivered output."""

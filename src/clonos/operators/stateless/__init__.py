"""What is done to each row or batch by itself, without state."""

"""What a job says of itself, for the systems that operators watch: listeners, nothing more."""

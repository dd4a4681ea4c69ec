"""Files that outlive a process: the house-keeper's journal, and layers on any file system."""

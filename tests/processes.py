"""What tests ask about processes that they have not started themselves."""

from pathlib import Path


def is_there(pid: int) -> bool:
    """Whether it runs: of one that has ended, its parent may have yet to hear."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"

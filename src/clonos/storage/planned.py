"""Spark's plan for a micro-batch, which its query writes down before the batch begins."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from clonos.errors import SourceError
from clonos.storage.files import Durability, sync_directory, sync_file


def extent(checkpoint: str, batch: int, durability: Durability, synced: set[Path]) -> str:
    """The extent of a batch: a digest of Spark's plan for it.

    So that it can be compared later, the plan must survive whatever the batch survives: on a local
    disk it is synced.

    Parameters
    ----------
    synced
        The files that are synced already; kept from batch to batch.

    Raises
    ------
    SourceError
        The plan cannot be read.
    """
    uri = checkpoint if "://" in checkpoint else Path(checkpoint).absolute().as_uri()
    try:
        system, root = pafs.FileSystem.from_uri(uri)
        with system.open_input_stream(f"{root}/offsets/{batch}") as stream:
            planned = stream.read()
        if durability == "fsync" and system.type_name == "local":
            _sync_plan(Path(root), batch, synced)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(
            f"what Spark has planned for batch {batch} cannot be read: {error}",
            where=checkpoint,
            remedy="check that the driver reaches the checkpoint_dir both by Spark and by pyarrow",
        ) from error
    return hashlib.sha256(planned).hexdigest()


def _sync_plan(root: Path, batch: int, synced: set[Path]) -> None:
    """Make durable what Spark has written down before this batch.

    A source numbers its own notes, and not like batches: the file source has none for a batch
    without new files. So all notes are synced, each once; Spark deletes old ones.
    """
    notes = set(root.glob("sources/*/*"))
    new = notes - synced
    for path in (root / "metadata", root / f"offsets/{batch}"):
        sync_file(path)
    for path in new:
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)
    sources = {folder for path in new for folder in (path.parent, root / "sources")}
    for folder in (*sources, root / "offsets", root):
        sync_directory(folder)
    synced &= notes
    synced |= new

"""Files that are read a part at a time.

They are read, not mapped: of a page that cannot be had, a process with a map of it dies by SIGBUS.
An open file stays what it is when its name is deleted.
"""

from __future__ import annotations

import os
import tempfile
import weakref


class OpenFile:
    """A local file, until nobody has it any more."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._path = path
        self._fd, self._nbytes = descriptor, os.fstat(descriptor).st_size
        weakref.finalize(self, os.close, descriptor)

    def __str__(self) -> str:
        return self._path

    def __len__(self) -> int:
        return self._nbytes

    def read(self, start: int, end: int) -> bytes:
        """Some of it; less than that if the file has become shorter."""
        end = min(end, self._nbytes)
        content = os.pread(self._fd, end - start, start)
        while 0 < len(content) < end - start:  # more than the system reads at once
            more = os.pread(self._fd, end - start - len(content), start + len(content))
            if not more:
                break
            content += more
        return content


class ScratchFile(OpenFile):
    """A file without a name, so that a killed process leaves none.

    Examples
    --------
    >>> file = ScratchFile()
    >>> file.write(b"abc")
    >>> len(file), file.read(1, 3)
    (3, b'bc')
    """

    def __init__(self) -> None:
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        descriptor, name = tempfile.mkstemp(prefix="clonos-", dir=folder)
        os.unlink(name)  # noqa: PTH108 - it was never more than a name
        super().__init__(descriptor, f"a file without a name in {folder}")
        self._waiting = bytearray()

    def write(self, content: bytes) -> None:
        """Append."""
        self._waiting += content
        if len(self._waiting) >= 1 << 20:
            self._flush()

    def finish(self) -> None:
        """Nothing more is written: from here on any thread may read."""
        self._flush()

    def _flush(self) -> None:
        view = memoryview(self._waiting)
        while view:
            written = os.pwrite(self._fd, view, self._nbytes)
            self._nbytes, view = self._nbytes + written, view[written:]
        self._waiting = bytearray()

    def __len__(self) -> int:
        return self._nbytes + len(self._waiting)

    def read(self, start: int, end: int) -> bytes:
        if self._waiting:
            self.finish()
        return super().read(start, end)


def open_file(path: str) -> OpenFile:
    """The file of this name."""
    return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

"""Files that are read part by part.

They are read, not mapped: SIGBUS kills a process that has mapped a page which cannot be read. The
content of an open file stays even when its name is deleted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref


class OpenFile:
    """A local file, kept open as long as anybody refers to it."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._path = path
        self._fd, self._nbytes = descriptor, os.fstat(descriptor).st_size
        weakref.finalize(self, os.close, descriptor)

    def __str__(self) -> str:
        return self._path

    def __len__(self) -> int:
        return self._nbytes

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`; fewer if the file has become shorter."""
        end = min(end, self._nbytes)
        content = os.pread(self._fd, end - start, start)
        while 0 < len(content) < end - start:  # more than the system reads at once
            more = os.pread(self._fd, end - start - len(content), start + len(content))
            if not more:
                break
            content += more
        return content

    def expect(self, start: int, end: int) -> None:
        """Let the system fetch these bytes meanwhile."""
        if sys.platform == "linux":
            os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_WILLNEED)


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
        os.unlink(name)  # noqa: PTH108 - only the name goes
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

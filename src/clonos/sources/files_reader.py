"""Files on any of pyarrow's file systems: lines or Parquet, distributed over the tasks."""

from __future__ import annotations

import codecs
import fnmatch
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from clonos.columns.batches import conform
from clonos.columns.schema import require_columns
from clonos.errors import ClonosError, SourceError
from clonos.sources.csv_header import require_header, without_header
from clonos.sources.lines import LINES
from clonos.sources.readers import BufferedReader

_CHUNK_BYTES = 1 << 20
_HEADER_CHUNK_BYTES = 1 << 14
_ROWS_PER_PIECE = 65_536
_LINE_BYTES_MAX = 64 << 20
"""A longer line is a bad record, because it must not fill the task's memory."""
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


@dataclass(frozen=True)
class FileList:
    """The files of a source, sorted by path: fixed when the job is defined."""

    root: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def find(cls, path: str) -> FileList:
        """A file, all files of a folder (recursively), or those that match a pattern at the end.

        Raises
        ------
        SourceError
            There are no files.
        """
        folder, _, pattern = path.rpartition("/")
        is_pattern = any(mark in pattern for mark in "*?[")
        try:
            file_system, inner = _resolve((folder or "/") if is_pattern else path)
            found = file_system.get_file_info(inner)
            if found.type == pa_fs.FileType.Directory:
                selector = pa_fs.FileSelector(inner, recursive=not is_pattern)
                files = [f for f in file_system.get_file_info(selector) if f.is_file]
            else:
                files = [found] if found.is_file else []
        except (OSError, pa.ArrowException) as error:
            remedy = "in keys of a URI, write / as %2F" if "://" in path else ""
            raise SourceError(f"cannot list {path}: {error}", remedy=remedy) from None  # has keys
        files = [f for f in files if not f.base_name.startswith(("_", "."))]
        if is_pattern:
            files = [f for f in files if fnmatch.fnmatch(f.base_name, pattern)]
        if not files:
            raise SourceError(f"there are no files at {path}", remedy="check the path")
        files.sort(key=lambda f: f.path)
        return cls(path, tuple(f.path for f in files), tuple(f.size for f in files))

    @property
    def place(self) -> str:
        """The path as the user gave it."""
        return self.root

    def open_file(self, path: str) -> Any:
        """A seekable input file."""
        return self.file_system.open_input_file(path)

    @property
    def file_system(self) -> Any:
        """The file system that holds them."""
        folder, _, pattern = self.root.rpartition("/")
        is_pattern = any(mark in pattern for mark in "*?[")
        return _resolve((folder or "/") if is_pattern else self.root)[0]


@dataclass(frozen=True)
class FindLine:
    """A :class:`clonos.sources.lines.Find` that reads the files once more."""

    files: FileList
    header: pa.Schema | None

    def trail(self, index: int, parallelism: int) -> LineTrail:
        """The lines that a task reads."""
        return LineTrail(LinesReader(self.files, index, parallelism, header=self.header))


class LineTrail:
    """A :class:`clonos.sources.lines.Trail` that reads the files of a task again, from the first
    on, as far as it is asked."""

    def __init__(self, reader: LinesReader) -> None:
        self._pieces = reader.numbered()
        self._path, self._number, self._lines = "", 0, list[bytes | None]()
        self._read = 0  # lines before this piece

    def find(self, lines: Sequence[tuple[int, bytes | None]], within_s: float) -> list[str]:
        """Fails never: another error is about to be told, which matters more."""
        until_s = time.monotonic() + within_s
        return [self._place(read, line, until_s) for read, line in lines]

    def _place(self, read: int, line: bytes | None, until_s: float) -> str:
        is_late = False
        while True:
            first = max(read - self._read, 0)
            if (at := _at(line, self._lines, first)) is not None:
                return f"line {self._number + at} of {self._path}"
            if is_late:
                return ""
            self._read += len(self._lines)
            self._lines = []
            try:
                self._path, self._number, self._lines = next(self._pieces)
            except (StopIteration, OSError, ValueError, pa.ArrowException, ClonosError):
                return ""
            is_late = time.monotonic() > until_s


def _at(line: bytes | None, lines: Sequence[bytes | None], first: int) -> int | None:
    """Where a line is, as a rule at `first`; further on if lines before it were left out, because
    they kill the process: these do not count as read."""
    if first < len(lines) and lines[first] == line:
        return first
    return next((i for i in range(first, len(lines)) if lines[i] == line), None)


class LinesReader(BufferedReader):
    """Lines of text files.

    If there are at least as many files as tasks, file i belongs to task i modulo the parallelism.
    Fewer files are cut into byte ranges; a line belongs to the range of its first byte.

    Parameters
    ----------
    header
        The schema whose columns the first line of each file must name; None: it is a row.
    """

    schema = LINES

    def __init__(
        self,
        files: FileList,
        task_index: int,
        parallelism: int,
        *,
        header: pa.Schema | None = None,
    ) -> None:
        super().__init__()
        self._files = files
        self._header = header
        self._parts = line_parts(files, task_index, parallelism)

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        for path, start, end in self._parts:
            with _named(path):
                for lines in self._lines(path, start, end):
                    yield pa.RecordBatch.from_arrays([pa.array(lines, pa.binary())], schema=LINES)

    def _lines(self, path: str, start: int, end: int | None) -> Iterator[list[bytes | None]]:
        with self._open(path) as stream:
            if self._header is not None:
                # Whoever reads a part of a file checks it, too: its rows are as wrong.
                header = [_first_line(stream)] if start else []
                pieces = _all_lines(stream, start, end)
                yield from without_header(pieces, header, self._header, path)
                return
            is_first = start == 0
            for lines in _all_lines(stream, start, end):
                if is_first and lines[0] is not None:
                    lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
                is_first = False
                yield lines

    def numbered(self) -> Iterator[tuple[str, int, list[bytes | None]]]:
        """The lines that it reads, with their file, and the number of the first of them there."""
        for path, start, end in self._parts:
            number = 1 + self._lines_before(path, start) + (self._header is not None and not start)
            for lines in self._lines(path, start, end):
                yield path, number, lines
                number += len(lines)

    def _lines_before(self, path: str, start: int) -> int:
        if not start:
            return 0
        with self._open(path) as stream:
            left, count = _line_start(stream, start), 0
            stream.seek(0)
            while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
                count += chunk.count(b"\n")
                left -= len(chunk)
        return count

    def _open(self, path: str) -> Any:
        if path.endswith(_COMPRESSED):
            return self._files.file_system.open_input_stream(path)
        return self._files.open_file(path)


def _all_lines(stream: Any, start: int, end: int | None) -> Iterator[list[bytes | None]]:
    """The lines that begin in a range of bytes, in lists that are not empty."""
    partial = _Line()
    last = None if end is None else _line_start(stream, end)
    at = _line_start(stream, start)
    if start:
        stream.seek(at)
    elif end is not None:
        stream.seek(0)
    while last is None or at < last:
        chunk = stream.read(_CHUNK_BYTES if last is None else min(_CHUNK_BYTES, last - at))
        if not chunk:
            break
        at += len(chunk)
        first, *others = chunk.split(b"\n")
        partial.add(first)
        if others:
            *whole, rest = others
            yield [partial.take(), *(line.rstrip(b"\r") for line in whole)]
            partial.add(rest)
    if partial.size:  # the last line lacks its line break
        yield [partial.take()]


def _first_line(stream: Any) -> bytes | None:
    """The first line of a file that has one."""
    line = _Line()
    stream.seek(0)
    while line.size <= _LINE_BYTES_MAX and (chunk := stream.read(_HEADER_CHUNK_BYTES)):
        piece, line_break, _ = chunk.partition(b"\n")
        line.add(piece)
        if line_break:
            break
    return line.take()


class _Line:
    """A line that has not ended: its beginning, in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        """What comes next of it; nothing is kept of a line that is too long."""
        self.size += len(piece)
        if self.size <= _LINE_BYTES_MAX:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def take(self) -> bytes | None:
        """It has ended: the line, or None if it was too long."""
        line = None if self.size > _LINE_BYTES_MAX else b"".join(self._pieces).rstrip(b"\r")
        self._pieces, self.size = [], 0
        return line


class ParquetReader(BufferedReader):
    """Row groups of Parquet files; row group i belongs to task i modulo the parallelism."""

    def __init__(
        self, files: FileList, schema: pa.Schema, task_index: int, parallelism: int
    ) -> None:
        super().__init__()
        self.schema = schema
        self._files = files
        self._task_index = task_index
        self._parallelism = parallelism

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        number = 0
        for path in self._files.paths:
            with (
                _named(path),
                self._files.open_file(path) as source,
                pq.ParquetFile(source) as file,
            ):
                require_columns(file.schema_arrow, self.schema.names, path)
                for group in range(file.num_row_groups):
                    if number % self._parallelism == self._task_index:
                        for batch in file.iter_batches(
                            _ROWS_PER_PIECE,
                            row_groups=[group],
                            columns=self.schema.names,
                            use_threads=False,
                        ):
                            yield conform(batch, self.schema)
                    number += 1


def line_parts(
    files: FileList, task_index: int, parallelism: int
) -> Sequence[tuple[str, int, int | None]]:
    """The byte ranges of a task, as (path, start, end); end None: the end of the file."""
    can_split = not any(path.endswith(_COMPRESSED) for path in files.paths)
    if len(files.paths) >= parallelism or not can_split:
        mine = files.paths[task_index::parallelism]
        return [(path, 0, None) for path in mine]
    return [
        (path, size * task_index // parallelism, size * (task_index + 1) // parallelism)
        for path, size in zip(files.paths, files.sizes, strict=True)
    ]


def first_lines(files: FileList, limit: int) -> list[bytes]:
    """Up to `limit` lines of the first file."""
    reader = LinesReader(files, 0, 1)
    reader.open(0)
    piece = next(reader._pieces(), None)  # noqa: SLF001 - of this module
    return [] if piece is None else piece.column(0).slice(0, limit).to_pylist()


def require_first_header(files: FileList, schema: pa.Schema) -> None:
    """Raise `UnknownColumn` if the first CSV file has a header that does not fit a schema.

    The tasks check all files. This only tells most users of it where they define the source.
    """
    try:
        lines = first_lines(files, 2)
        if any(lines):
            with _named(files.paths[0]):
                require_header(lines[0], schema, files.paths[0])
    except SourceError:
        return  # perhaps it can be read where the tasks are; if not, they say so


def parquet_schema(files: FileList) -> pa.Schema:
    """The schema of the first file."""
    path = files.paths[0]
    with _named(path), files.open_file(path) as source:
        return pq.read_schema(source).remove_metadata()


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors say which file cannot be read, or does not fit the schema."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"it cannot be read: {error}",
            where=path,
            remedy="put the file right, or give a schema that it fits",
        ) from error


def _resolve(path: str) -> tuple[Any, str]:
    if "://" in path:
        return pa_fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]
    return pa_fs.LocalFileSystem(), path


def _line_start(stream: Any, at: int) -> int:
    """The start of the first line that begins at byte `at` or later."""
    if at == 0:
        return 0
    at -= 1  # the byte before shows whether a line begins exactly at `at`
    stream.seek(at)
    while chunk := stream.read(_CHUNK_BYTES):
        line_break = chunk.find(b"\n")
        if line_break >= 0:
            return at + int(line_break) + 1
        at += len(chunk)
    return at

"""The folders of a job's checkpoint, and whether the same job has written them.

::

    <checkpoint_dir>/terms/            the current driver: on any file system of pyarrow's
    <checkpoint_dir>/layers/<id>/      state of the tasks
    <checkpoint_dir>/spool/<id>/       sources that were spooled
    <journal>/journal/                 the house-keeper's journal
    <journal>/delivered/               delivered output, out of the journal
    <journal>/job.json                 the graph that wrote all this, and what is done
    <journal>/watch                    where the job's page is, while it runs; only if local
    <journal>/checkpoint_id            the <id>: a random name, of the first start of the job

The journal's folder is on a local file system, in a database, or a chain of objects on a store that
several machines reach. By default it is the checkpoint_dir, if that is local. If other machines
reach the journal, delivered output is in the checkpoint_dir.
"""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import tempfile
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from clonos.errors import BadDirectory, OtherExecution, OtherJob, UnreadableCheckpoint, masked
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe, names_of, require_same, tables_of, with_reads
from clonos.storage.checkpoint import OF_QUERIES, OF_TASKS, TERMS, Checkpoint
from clonos.storage.files import Disk, LocalFiles, files_of, folder_name, in_this_process
from clonos.storage.folder import Folder
from clonos.storage.journal import JournalReader
from clonos.storage.objects import ObjectDisk, is_object_store, objects_of
from clonos.storage.postgres_disk import PostgresDisk
from clonos.storage.terms import Term, Terms
from clonos.upgrade.names import NOTHING_RENAMED, Renamed, states_in

_FORMAT: Final = 9
"""The format of everything in these folders, including the names of files."""
_DATABASE: Final = ("postgresql://", "postgres://")


class JobDirectory:
    """The folders of one job.

    Parameters
    ----------
    checkpoint_dir
        A local path or a URI; None: a temporary folder that is deleted with this object.
    journal
        A local path, or a URI: of a PostgreSQL database, or of a place for objects (``s3://``,
        ``gs://``, ``az://``, ``hdfs://``, or ``file://`` for a mount that other machines have);
        needed if `checkpoint_dir` is not local.
    on_one_machine
        Whether all executors are on the driver's machine.
    sole_driver
        Whether the user makes sure that no two drivers of the job ever run at once. Needed if the
        file system cannot refuse one of them.

    Raises
    ------
    BadDirectory
        The journal has no local folder, or the executors would not reach the layers.
    """

    def __init__(
        self,
        checkpoint_dir: str | None,
        journal: str | Path | None,
        *,
        on_one_machine: bool,
        sole_driver: bool = False,
    ) -> None:
        self.is_temporary = checkpoint_dir is None and journal is None
        """Whether the job cannot be continued when its process has ended."""
        self._temporary: weakref.finalize[Any, Any] | None = None
        if checkpoint_dir is None and not on_one_machine:
            raise BadDirectory(
                "executors on other machines cannot reach a temporary folder of the driver",
                remedy="give a checkpoint_dir that all of them reach, such as hdfs://... or s3://...",
            )
        if checkpoint_dir is None and _is_shared(journal):
            raise BadDirectory(
                "with its journal not on a local disk, a job needs a checkpoint_dir for its state",
                remedy="give a checkpoint_dir that other machines reach, too",
            )
        if checkpoint_dir is None:
            checkpoint_dir = tempfile.mkdtemp(prefix="clonos-")
            remove = partial(shutil.rmtree, checkpoint_dir, ignore_errors=True)
            self._temporary = weakref.finalize(self, in_this_process(remove))
        base = checkpoint_dir.rstrip("/")
        if "://" not in base:
            base = str(Path(base).absolute())  # executors have other working directories
        self._base = base
        self.disk, self.root, is_shared = _place(base, journal)
        """The folder of the journal. Only the holder of the journal's lock may use it."""
        self.delivered_uri = f"{base if is_shared else self.root}/delivered"
        self._written: list[str] = []
        self._graphs: dict[int, Any] = {}  # by version of the plan; two while it is being replaced
        self._retired: list[str] = []  # operators that an earlier plan had
        self._left: list[list[str]] = []  # tables to which an earlier plan wrote
        self._rewound: list[dict[str, Any]] = []
        self._rewound_then: list[dict[str, Any]] = []  # when the job was compared
        self._version_then = 0  # what was announced for later ones may not be in force
        self._states: list[tuple[int, dict[str, dict[str, str]]]] = []
        self.numbers: dict[str, int] = {}
        """By name, how many calls an operator had asked in earlier plans."""
        self.hash_seed = ""
        """The hash seed of Python in the slots, as read from `job.json` or set by a new job."""
        # URIs in a graph may contain keys: nobody else may read the file.
        self._folder = Folder(self.disk, self.root, "fsync", 0o600)
        terms = partial(_terms, self.terms_uri, is_vouched=sole_driver or is_shared)
        self._checkpoint = Checkpoint(self._folder, socket.gethostname(), terms)

    def keep(self) -> None:
        """Others read the folder from now on: if temporary, keep it until the process ends."""
        if self._temporary is not None and (found := self._temporary.detach()) is not None:
            atexit.register(found[1])

    def hurry(self) -> None:
        """Do not wait long for the database any more, if the journal is in one."""
        if isinstance(self.disk, PostgresDisk):
            self.disk.hurry()

    def close(self) -> None:
        """Close the connection to the database, if the journal is in one."""
        if isinstance(self.disk, PostgresDisk):
            self.disk.close()

    @property
    def journal_root(self) -> str:
        """Where the journal's files are."""
        return f"{self.root}/journal"

    @property
    def local_folder(self) -> Path | None:
        """The journal's folder, if it is on this machine."""
        return Path(self.root) if isinstance(self.disk, LocalFiles) else None

    @property
    def is_new(self) -> bool:
        """Whether no job has ever been started here."""
        return not (self._folder.has("journal") and self._folder.has("checkpoint_id"))

    @property
    def terms_uri(self) -> str:
        """Where the current driver of the job is recorded."""
        return f"{self._base}/{TERMS}"

    @property
    def layers_uri(self) -> str:
        """Where the state of the tasks is. For the holder of the journal's lock."""
        return f"{self._base}/layers/{self.checkpoint_id}"

    @property
    def spool_uri(self) -> str:
        """Where rows wait for their tasks. For the holder of the journal's lock."""
        return f"{self._base}/spool/{self.checkpoint_id}"

    @property
    def queries_uri(self) -> str:
        """The checkpoints of the queries that follow sinks. For the holder of the journal's
        lock."""
        return f"{self._base}/queries/{self.checkpoint_id}"

    @property
    def checkpoint_id(self) -> str:
        """The random name of the checkpoint. For the holder of the journal's lock."""
        return self._checkpoint.id

    def get_ready(self) -> None:
        """Do what a start waits for and what can be done before it is ours to begin."""
        self._folder.make_folder(self.root)
        self._checkpoint.get_ready()

    def begin_term(self, *, position: int, before: int) -> int:
        """Begin a term of this driver. For the holder of the journal's lock.

        Parameters
        ----------
        position
            How many records the journal has.
        before
            The last term that it knows of; 0: none.

        Returns
        -------
        int
            The number of the term.

        Raises
        ------
        OtherJournal
            The checkpoint has been continued with another journal, or with a later state of this
            one.
        Superseded
            Another driver has begun at the same moment.
        CannotFence
            The file system cannot refuse one of two drivers.
        BadDirectory
            The folder cannot be used.
        """
        try:
            return self._checkpoint.begin_term(position=position, before=before).number
        except (OSError, pa.ArrowException) as error:
            raise BadDirectory(
                f"the checkpoint_dir cannot be used: {error}",
                where=self._base,
                remedy="check that the driver reaches the folder and may write to it",
            ) from error

    def rival(self) -> Term | None:
        """The later driver of this job, if there is one. To be called now and then; raises
        `OSError` if the folder cannot be reached."""
        return self._checkpoint.rival()

    def check(
        self, compiled: CompiledJob, version: int | None = None, *, is_upgrade: bool = False
    ) -> None:
        """Compare the job with the one that was here before, if any.

        Parameters
        ----------
        version
            How often the plan has been replaced, according to the journal; None: unknown. Then both
            the plan that is being replaced and its replacement are accepted.
        is_upgrade
            Whether any graph is accepted.

        Raises
        ------
        OtherJob
            It had another graph.
        UnreadableCheckpoint
            The description of that job cannot be read, or has another format.
        OtherExecution
            It ran as Spark's streaming queries.
        """
        files, place = files_of(self._base)
        if files.info(f"{place}/{OF_QUERIES}") is not None:
            raise OtherExecution(
                f"the checkpoint {self._base} belongs to Spark's streaming queries",
                remedy="give another checkpoint_dir: positions and state mean different things",
            )
        self.read()
        self._rewound_then = self._rewound
        self._version_then = min(self._graphs, default=0)
        if not is_upgrade:
            self.require(compiled, version)

    def catch_up(self, version: int, *, has_waited: bool = False) -> None:
        """Read what others have written since :meth:`check`. For the holder of the journal's lock.

        Parameters
        ----------
        version
            How often the plan has been replaced, according to the journal.
        has_waited
            Another process had the lock at first: one that rewound the job, perhaps, so what was
            announced by then may have taken effect since.

        Raises
        ------
        OtherJob
            The job has gone back since then, perhaps because of functions that we still have. Slots
            that wait do not know either which output was discarded.
        """
        self.read()
        for one in self.rewound(version):
            is_later = has_waited and one["version"] > self._version_then
            if is_later or one not in self._rewound_then:
                raise OtherJob(
                    f"the job went back to point {one['point']} of its past while this process "
                    "waited for it",
                    where=self._base,
                    remedy="begin again, with the functions with which the job is to go on",
                )

    def require(self, compiled: CompiledJob, version: int | None = None) -> None:
        """Raise `OtherJob` if a job has another graph than was read; see :meth:`check`."""
        if not self._graphs:
            return
        now = json.loads(json.dumps(describe(compiled)))
        if version is None and now in (with_reads(graph, now) for graph in self._graphs.values()):
            return
        before = with_reads(self.graph(min(self._graphs) if version is None else version), now)
        remedy = "; or let it settle with that graph, and start this one with upgrade=True"
        require_same(before, now, self._folder.path(OF_TASKS), remedy)

    def read(self) -> None:
        """Read the description of the job again."""
        try:
            about = json.loads(self._folder.read(OF_TASKS).to_pybytes())
            form, version, self._written = (
                about["format"],
                about.get("version", 0),
                about["written"],
            )
            self._graphs = {version: about["graph"]}
            if "next" in about:
                self._graphs[version + 1] = about["next"]
            self._retired = list(about.get("retired", []))
            self._left = list(about.get("left", []))
            self._rewound = list(about.get("rewound", []))
            self._states = [(since, states) for since, states in about.get("states", [])]
            self.numbers = dict(about.get("numbers", {}))
            self.hash_seed = str(about.get("hash_seed", ""))
        except FileNotFoundError:
            if self._has_records():
                raise self._unreadable("it is missing, but there is a journal") from None
            return  # if a driver was here, it has died before it began
        except NotADirectoryError:
            raise BadDirectory(
                f"{self._folder.root} is no folder",
                where="checkpoint_dir",
                remedy="give a folder that only this job uses; it is made if it is not there",
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and not self.disk.is_local:
                raise BadDirectory(
                    f"the journal cannot be reached: {error}",
                    remedy="check the URI, the keys, and that the driver reaches the store",
                ) from None
            raise self._unreadable(f"{type(error).__name__}: {error}") from error
        if form != _FORMAT:
            raise UnreadableCheckpoint(
                f"the checkpoint has format {form}, this clonos reads format {_FORMAT} only",
                where=self._folder.path(OF_TASKS),
                remedy="let the clonos that wrote it end the job, or start the job afresh in "
                "another checkpoint_dir",
            )

    def _has_records(self) -> bool:
        try:
            return bool(JournalReader().more(self.disk, self.journal_root)[1])
        except FileNotFoundError:
            return False

    def graph(self, version: int) -> Any:
        """The graph of this version, with which the journal was written."""
        if version not in self._graphs:
            raise self._unreadable(f"the journal is of version {version} of the graph")
        return self._graphs[version]

    def retired(self, version: int) -> list[str]:
        """Former operators of the job with this version of the graph, whose numbers must not be
        used again."""
        before = self.graph_before(version)
        gone = set(names_of(before)) - set(names_of(self.graph(version))) if before else set()
        return sorted({*self._retired, *gone})

    def left(self, version: int) -> list[list[str]]:
        """Sinks, and the tables to which they wrote, that the job with this version of the graph no
        longer has."""
        before = self.graph_before(version)
        now = tables_of(self.graph(version))
        found = [*self._left, *(tables_of(before) if before else ())]
        return [one for n, one in enumerate(found) if one not in [*now, *found[:n]]]

    def graph_before(self, version: int) -> Any:
        """The graph that this version has replaced, until the job is claimed; None: none."""
        return self._graphs.get(version - 1)

    def is_same(self, compiled: CompiledJob, version: int) -> bool:
        """Whether a job has the graph of this version, or there is none yet."""
        now = json.loads(json.dumps(describe(compiled)))
        return not self._graphs or with_reads(self.graph(version), now) == now

    def rewound(self, version: int) -> list[dict[str, Any]]:
        """The job's rewinds, up to this version of its plan: for each the point and its time, the
        generation and version that began, the newest point then, and what sinks have taken back."""
        return [one for one in self._rewound if one["version"] <= version]

    def is_to_rename(self, renamed: Renamed, version: int) -> bool:
        """Whether states have other names according to `renamed`, and have not got these names with
        this version of the graph or before. The graph does not show what states there are."""
        states = states_in(renamed)
        done = [states for since, states in self._states if since <= version]
        return bool(self._graphs and states) and done[-1:] != [states]

    @property
    def lanes_began(self) -> dict[tuple[str, int], int]:
        """By sink and index of its task: the last output before the job was last rewound. An
        announced rewind that did not happen does no harm: no lane begins after that number."""
        newest = self._rewound[-1]["lanes"] if self._rewound else {}
        return {(sink, int(task)): n for sink, lanes in newest.items() for task, n in lanes.items()}

    def announce(
        self,
        compiled: CompiledJob,
        version: int,
        numbers: Mapping[str, int] | None = None,
        *,
        rewound: Mapping[str, Any] | None = None,
        renamed: Renamed = NOTHING_RENAMED,
    ) -> None:
        """Write down the graph of the next version, beside the present one, and how many calls
        operators have asked, which is valid with either graph.

        ``rewound``: the point to which the job goes back with this version. ``renamed``: what has
        another name in it.
        """
        self.numbers |= numbers or {}
        self._retired, self._left = self.retired(version - 1), self.left(version - 1)
        # What was announced before for this version has not happened.
        self._states = [one for one in self._states if one[0] < version]
        self._rewound = self.rewound(version - 1)
        if states := states_in(renamed):
            self._states.append((version, states))
        if rewound is not None:
            self._rewound.append({"version": version, **rewound})
        self._graphs[version] = json.loads(json.dumps(describe(compiled)))
        self._put(version - 1)

    @property
    def task_names(self) -> list[str]:
        """The names of the tasks of the job that was here before, by number."""
        return list(json.loads(self._folder.read(OF_TASKS).to_pybytes())["graph"]["tasks"])

    def claim(self, compiled: CompiledJob, version: int = 0) -> None:
        """Write down that this is the checkpoint of this job. For the holder of the journal's
        lock."""
        self._graphs[version] = json.loads(json.dumps(describe(compiled)))
        self._retired, self._left = self.retired(version), self.left(version)
        self._graphs = {version: self._graphs[version]}
        self._put(version)

    def _put(self, version: int) -> None:
        about = {
            "format": _FORMAT,
            "version": version,
            "graph": self._graphs[version],
            "written": self._written,
            "hash_seed": self.hash_seed,
            "retired": self._retired,
            "left": self._left,
            "rewound": self._rewound,
            "numbers": self.numbers,
            "states": self._states,
        }
        if version + 1 in self._graphs:
            about["next"] = self._graphs[version + 1]
        self._folder.put(OF_TASKS, json.dumps(about, indent=1).encode())

    def is_written(self, sink: str) -> bool:
        """Whether Spark has written the rows of a sink already."""
        return sink in self._written

    def set_written(self, sink: str, compiled: CompiledJob) -> None:
        """Record that Spark has written them."""
        self._written.append(sink)
        self.claim(compiled, *self._graphs)

    def _unreadable(self, why: str) -> UnreadableCheckpoint:
        return UnreadableCheckpoint(
            f"the description of the job cannot be read: {why}",
            where=self._folder.path(OF_TASKS),
            remedy="restore the file from a copy, or start the job afresh in another folder",
        )


def _in_database(journal: str | Path | None) -> bool:
    return isinstance(journal, str) and journal.startswith(_DATABASE)


def _is_shared(journal: str | Path | None) -> bool:
    """Whether other machines reach the journal."""
    return _in_database(journal) or is_object_store(journal)


def _place(base: str, journal: str | Path | None) -> tuple[Disk, str, bool]:
    """The disk that the journal is on, its folder there, and whether other machines reach it."""
    local = _local(base)
    if journal is None and local is None:
        raise BadDirectory(
            f"{masked(base)} is not on a local disk, so the journal needs a place of its own",
            remedy="give journal=: a folder on a disk that outlives the driver; or, for a driver "
            "on another machine to go on, postgresql://user@host/database, s3://bucket/journals, "
            "or another place for objects",
        )
    if _in_database(journal):
        # Keys in the checkpoint's URI are masked, because others may read the tables.
        return PostgresDisk(str(journal)), f"/{folder_name(masked(base))}", True
    place = f"{str(journal).rstrip('/')}/{folder_name(masked(base))}"
    if is_object_store(journal) and "://" in place:
        return ObjectDisk(objects_of(place)), "/job", True
    if isinstance(journal, str) and "://" in journal:
        raise BadDirectory(
            f"the journal cannot be kept in {masked(journal)}",
            remedy="give journal=, a folder on a local disk, postgresql://user@host/database, or "
            "s3://bucket/journals, gs://, az://, hdfs://",
        )
    return LocalFiles(), str(Path(journal or local or "").absolute()), False


def _terms(uri: str, *, is_vouched: bool) -> Terms:
    return Terms(Folder(*files_of(uri), "fsync", 0o600), is_vouched=is_vouched)


def _local(base: str) -> Path | None:
    """The path of a folder of this machine, or None."""
    if "://" not in base:
        return Path(base).absolute()
    parts = urlsplit(base)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None

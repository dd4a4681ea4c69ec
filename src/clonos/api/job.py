"""The job: where a graph begins, and where it is run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from clonos.api.feedback import Feedback
from clonos.api.settings import (
    MORE_ROOM,
    SAID_RARELY,
    checkpoints_of,
    depth_of,
    flag_of,
    folder_of,
    interval_of,
    keep_of,
    limit_of,
    local_folder_of,
    name_of,
    number_of,
    one_of,
    redaction_of,
    require_bounded,
    require_level,
    require_logs_of,
    require_needed,
    require_one_past,
    size_of,
)
from clonos.api.starting import StartOptions, for_queries, for_tasks, require_no_options
from clonos.api.streams import Execution, Stream, is_spark
from clonos.columns.schema import parse_schema
from clonos.errors import BadGraph, NeedsSpark, WrongType
from clonos.graph.compile import CompiledJob, compile_graph
from clonos.graph.logical import BUNDLE_BYTES, JobOptions, LogicalGraph
from clonos.operators.bad_records import BAD_RECORDS
from clonos.operators.base import OnBadRecord
from clonos.operators.operations import PassOn
from clonos.sinks import collect
from clonos.sources import dataframe
from clonos.sources.spec import SourceSpec, rate_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Job:
    """A graph of streams, and how to run it.

    Parameters
    ----------
    name
        For messages and Spark's UI.
    parallelism
        Tasks per operator, unless the operator says otherwise.
    standbys
        Warm standbys per task.
    sharing_depth
        How many hops logs travel downstream: 0, 1, ..., or "full". With fewer hops than the job
        is deep, tasks in the middle send logs that travel no further to the driver, in messages
        that "full" does not need. Fewer hops save bytes when parallelism is high.
    checkpoint_interval
        Time between checkpoints. "auto": a second, and less where this is cheap.
    checkpoints
        "auto": "marked" with a history or a weaker guarantee, else "uncoordinated".
        "uncoordinated": every task saves its state by its own timer, and the driver finds the
        newest states that fit together. "marked": all tasks save it at markers between the rows.
    checkpoint_dir
        Where to keep checkpoints and the driver's journal; a temporary folder by default.
    persistence
        How safely the state of tasks is kept: in the checkpoint directory ("store"), on the local
        disks of the machines of a task and a standby ("local"), or only in the memories of a task
        and its standbys ("memory"). State that is not in the directory is lost with the last
        process or disk that has it; the job then ends with a `StateLost`. "auto" uses the
        directory; while that is slow or away, state is also kept at the other levels, and tasks are
        restored from there. Input is given up only for state that is in the directory, so nothing
        is lost. :meth:`Stream.with_persistence` sets the level of single operators.
    local_dir
        Where on each machine state is kept, for "local" and "auto"; by default a folder among its
        temporary files.
    guarantee
        "at_least_once" runs without logs: after a failure, rows since the last checkpoint come
        again. "at_most_once" has no checkpoints either: what died is lost, nothing comes twice.
    on_orphan
        What tasks do if logs that they depend on are lost: go back to just before they took
        anything lost ("consistency"), or continue and risk duplicates ("availability").
    on_bad_record
        A record that a function cannot handle fails the job, is counted and dropped ("drop"), or
        is kept in a stream of its own ("keep"), :attr:`bad_records`.
    history
        How much of the past is kept for :class:`clonos.Replay` and :meth:`branch`: a duration. By
        default, nothing older than the newest checkpoint.
    history_bytes
        How much space the history may take, such as ``"50 GB"``; if it needs more, its oldest part
        is deleted. Rows that sources have spooled do not count.
    history_interval
        Time between two points of the history.
    inflight
        Tasks keep their output until the receivers' checkpoints have passed it. "spill": output
        that does not fit into memory goes to the local disk; "memory": nothing does.
    inflight_bytes
        How much output a slot keeps in memory, 1 MiB or more, such as ``"1 GB"``. At twice as
        much (if the disk is full, or nothing is spilled), sources wait.
    log_bytes
        How many bytes of logs a slot may hold, 1 MiB or more. Above half of it the next checkpoint
        begins at once, whatever the interval; above all of it sources wait for checkpoints.
    state_memory
        How much memory a slot gives to values and rows by key, timers and open windows; 1 MiB or
        more. Beyond that, state that was not used lately is on the local disk or in the checkpoint.
    speculation
        Whether a task that falls far behind its peers, the tasks of the same operator, is overtaken
        by its standby: it is fenced where it is slow, and recovered in another slot.
    log
        "needed": tasks with one input and deterministic operators (functions: those declared with
        ``deterministic=True``) share no log. After a failure they compute again.
    bundle_bytes
        How much state and log the bundle of an error may have; if there is more, it covers the
        failed task alone. None: no bundle. ``bundle_redact``: ``redact`` of :func:`clonos.bundle`.
    seed
        Of ``ctx.random``.
    lineage
        The name from which ``ctx.idempotency_key`` makes keys: runs with the same lineage give the
        same keys for the same identities. By default a run shares its lineage only with the
        restarts from its checkpoint.

    Examples
    --------
    >>> import clonos
    >>> job = clonos.Job("wordcount")
    >>> lines = job.source(clonos.sources.from_batches([[("to be or",)]], schema="value string"))
    >>> words = lines.flat_map(lambda row: row.value.split(), schema="word string")
    >>> counts = words.key_by("word").window(clonos.tumbling("1 second")).agg(n=clonos.count())
    >>> counts.sink(clonos.sinks.collect())
    >>> len(job.compile().plan.tasks)
    2
    """

    def __init__(
        self,
        name: str = "job",
        *,
        parallelism: int = 1,
        standbys: int = 1,
        sharing_depth: int | Literal["full"] = "full",
        checkpoints: Literal["auto", "marked", "uncoordinated"] = "auto",
        checkpoint_interval: str | timedelta = "auto",
        checkpoint_dir: str | None = None,
        persistence: Literal["memory", "local", "auto", "store"] = "store",
        local_dir: str | None = None,
        guarantee: Literal["exactly_once", "at_least_once", "at_most_once"] = "exactly_once",
        on_orphan: Literal["consistency", "availability"] = "consistency",
        on_bad_record: OnBadRecord = "fail",
        history: str | timedelta | None = None,
        history_bytes: str | int | None = None,
        history_interval: str | timedelta = "1 minute",
        inflight: Literal["spill", "memory"] = "spill",
        inflight_bytes: str | int = "256 MiB",
        log_bytes: str | int = "256 MiB",
        speculation: bool = False,
        log: Literal["everything", "needed"] = "everything",
        state_memory: str | int = "512 MiB",
        bundle_bytes: str | int | None = BUNDLE_BYTES,
        bundle_redact: Any = None,
        seed: int = 0,
        lineage: str | None = None,
    ) -> None:
        one_of("guarantee", guarantee, "exactly_once", "at_least_once", "at_most_once")
        one_of("checkpoints", checkpoints, "auto", "marked", "uncoordinated")
        require_logs_of(guarantee, checkpoints, speculation=speculation)
        one_of("on_orphan", on_orphan, "consistency", "availability")
        require_level(persistence, standbys, guarantee, history, on_orphan, log)
        keep = keep_of(history, history_bytes, history_interval)
        if keep is not None:
            require_one_past(history, guarantee, on_orphan)
        require_needed(log, guarantee, on_orphan, history)
        one_of("inflight", inflight, "spill", "memory")
        one_of("on_bad_record", on_bad_record, *get_args(OnBadRecord))
        self.name = name_of("name", name)
        self.parallelism = number_of("parallelism", parallelism, 1)
        self._frames: dict[Stream, str] = {}  # streams that were made DataFrames, and their sinks
        self._graph = LogicalGraph(
            name=name,
            parallelism=self.parallelism,
            sharing_depth=depth_of(sharing_depth),
            seed=number_of("seed", seed, None),
            on_bad_record=on_bad_record,
            options=JobOptions(
                standbys=number_of("standbys", standbys, 0),
                checkpoints=checkpoints_of(checkpoints, guarantee, keep),
                checkpoint_interval_ms=interval_of(checkpoint_interval),
                checkpoint_dir=folder_of("checkpoint_dir", checkpoint_dir),
                guarantee=guarantee,
                on_orphan=on_orphan,
                lineage=None if lineage is None else name_of("lineage", lineage),
                keep=keep,
                inflight=inflight,
                inflight_bytes=size_of("inflight_bytes", inflight_bytes, SAID_RARELY),
                log_bytes=size_of("log_bytes", log_bytes, "give more: a checkpoint takes its time"),
                speculation=flag_of("speculation", speculation),
                log=log,
                state_memory=size_of("state_memory", state_memory, MORE_ROOM),
                bundle_bytes=limit_of("bundle_bytes", bundle_bytes),
                bundle_redact=redaction_of("bundle_redact", bundle_redact),
                persistence=persistence,
                local_dir=local_folder_of("local_dir", local_dir),
            ),
        )

    def __repr__(self) -> str:
        operators = ", ".join(vertex.name for vertex in self._graph.vertices)
        return f"<Job {self.name!r}, parallelism {self.parallelism}: {operators or 'nothing yet'}>"

    def source(
        self,
        source: Any,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        rows_per_second: float | None = None,
        materialize: bool = False,
    ) -> Stream:
        """A stream of the rows of a source from ``clonos.sources`` or of a Spark DataFrame.

        A streaming DataFrame is an input without end (see :func:`clonos.sources.stream`).

        Parameters
        ----------
        rows_per_second
            The most rows per second that are admitted, over all tasks of the source.
        materialize
            Have Spark write the DataFrame to Parquet files under the checkpoint directory first,
            and read those: for a DataFrame whose rows may come in another order when it is
            computed again.
        """
        if not isinstance(source, SourceSpec):
            if not hasattr(source, "mapInArrow"):
                raise WrongType(
                    f"{type(source).__name__} is not a source",
                    remedy="give a Spark DataFrame or one of clonos.sources",
                )
            source = dataframe(source)
        if materialize:
            if source.kind != "dataframe":
                raise WrongType(
                    f"a {source.kind} source cannot be materialized",
                    remedy="materialize only DataFrames that do not stream",
                )
            source = replace(source, kind="materialized")
        if rows_per_second is not None:
            source = replace(source, rows_per_second=rate_of("rows_per_second", rows_per_second))
        limit = source.parallelism_max
        if limit is not None and parallelism is not None and parallelism > limit:
            raise BadGraph(
                f"a {source.kind} source cannot be shared out to {parallelism} tasks",
                where=name or source.kind,
                remedy=f"use parallelism={limit} and rebalance() after it",
            )
        if parallelism is None:
            parallelism = min(self.parallelism, limit or self.parallelism)
        vertex = self._graph.add(
            source.kind,
            name,
            schema=source.rows_schema,
            parallelism=parallelism,
            operation=source.head,
            source=source,
        )
        return Stream(self, vertex)

    def feedback(
        self, schema: Any, *, name: str | None = None, parallelism: int | None = None
    ) -> Feedback:
        """A stream whose rows come from further downstream: the beginning of a loop.

        Close it with :meth:`Feedback.feed`. The job ends when its sources have ended, nothing goes
        round any more, and no timer or call in the loop is open. Rows that come round have no event
        time: watermarks are those of rows from outside, so windows and joins belong before or
        after the loop.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job("countdown")
        >>> numbers = job.source(clonos.sources.from_batches([[(3,), (1,)]], schema="n long"))
        >>> again = job.feedback("n long")
        >>> less = numbers.union(again).map(lambda row: row.n - 1, "n long")
        >>> again.feed(less.filter(lambda row: row.n > 0))
        >>> less.sink(clonos.sinks.collect())
        >>> from clonos.testing import InMemoryRun
        >>> sorted(InMemoryRun(job.compile()).run()["collect"].column("n").to_pylist())
        [0, 0, 1, 2]
        """
        vertex = self._graph.add(
            "feedback",
            name,
            schema=parse_schema(schema),
            parallelism=parallelism,
            operation=PassOn(),
        )
        self._graph.feedback[vertex.id] = None
        return Feedback(self, vertex)

    @cached_property
    def bad_records(self) -> Stream:
        """The records that no function could handle, of a job with ``on_bad_record="keep"``.

        Send them to a sink of their own (elsewhere called a dead letter queue). They are output
        like any other: each once, whatever dies. Their columns:

        ``time timestamp``
            When the operator tried to handle it, by the job's logged clock.
        ``operator string``
            The operator that could not handle it.
        ``record string``
            The row as JSON; a line of a file as it is; a timer or a reply by its key. If
            ``map_batches`` could not handle a batch, there is a record for each of its rows. If a
            result does not fit the declared columns, it is the result.
        ``error string``
            Class and message of the exception.
        ``raised_at string``
            The innermost of your own lines in the traceback, if any: ``"score.py:12, in score"``.

        Errors in operators that read this stream fail the job.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job("halves", on_bad_record="keep")
        >>> numbers = job.source(clonos.sources.from_batches([[(0,), (2,)]], schema="n long"))
        >>> halves = numbers.map(lambda row: 10 // row.n, "half long", name="half")
        >>> halves.sink(clonos.sinks.collect())
        >>> job.bad_records.sink(clonos.sinks.collect(), name="bad")
        >>> from clonos.testing import InMemoryRun
        >>> (bad,) = InMemoryRun(job.compile()).run()["bad"].to_pylist()
        >>> bad["operator"], bad["record"], bad["error"]
        ('half', '{"n": 0}', 'ZeroDivisionError: integer division or modulo by zero')
        """
        how = self._graph.on_bad_record
        if how != "keep":
            raise BadGraph(
                f"bad records of this job are not kept: on_bad_record={how!r}",
                remedy='make it with clonos.Job(..., on_bad_record="keep")',
            )
        vertex = self._graph.add(
            "bad_records",
            None,
            schema=BAD_RECORDS,
            parallelism=1,
            operation=PassOn(),
            takes_bad_records=True,
        )
        return Stream(self, vertex)

    @property
    def graph(self) -> LogicalGraph:
        """What was defined so far."""
        return self._graph

    def compile(self) -> CompiledJob:
        """The plan and the code of the tasks."""
        return compile_graph(self._graph)

    def cores(self, standby_slots: int | None = None, *, on_cluster: bool = False) -> int:
        """How many cores of Spark the job needs: one per slot, and one for queries that feed it.

        Parameters
        ----------
        standby_slots, on_cluster
            As for :meth:`start`; and whether each standby needs a slot (locally, two share one).
        """
        from clonos.cluster.pool import SlotPool

        return SlotPool.count(self.compile(), standby_slots, is_local=not on_cluster)

    def start(
        self, spark: Any = None, *, execution: Execution = "tasks", **options: Unpack[StartOptions]
    ) -> Any:
        """Start the job in a Spark session and return at once.

        With a ``checkpoint_dir``, the same call continues a job that was stopped, or whose driver
        died, where it was; if the job is complete, it has the same result at once.

        Parameters
        ----------
        spark
            A session; a new local one by default.
        execution
            "tasks", or "spark": Spark's streaming queries, one per sink (``docs/executions.md``).
        options
            Of :class:`~clonos.cluster.driver.RunningJob`. With "spark" only ``processing_time``
            and ``available_now``, as PySpark's triggers.

        Returns
        -------
        RunningJob
            To watch, stop or wait for; with "spark" a
            :class:`~clonos.dataframes.execution.RunningPlans`.

        Raises
        ------
        WrongType
            An option is unknown, or has a wrong value.
        NotInSpark
            With "spark": Spark has no plan for an operation that gives the rows that tasks give.
        """
        if is_spark(execution):
            from clonos.dataframes.execution import start_plans

            return start_plans(self._graph, self.plans(spark), **for_queries(options))
        from clonos.cluster.runs import start_job

        return start_job(self.compile(), spark, graph=self._graph, **for_tasks(options))

    def run(
        self,
        spark: Any = None,
        *,
        execution: Execution = "tasks",
        timeout_s: float | None = None,
        **options: Unpack[StartOptions],
    ) -> Any:
        """Run the job until its input ends.

        Parameters
        ----------
        execution
            "tasks", or "spark": Spark's batch plans, one per sink (``docs/executions.md``).
        timeout_s
            After this time the job is stopped, and `NotEnded` raised (a `TimeoutError`).
        spark, options
            As for :meth:`start`. With "spark" there are no options.

        Returns
        -------
        JobResult
            Delivered rows, recoveries, warnings; with "spark" a
            :class:`~clonos.dataframes.execution.PlanResult`.

        Raises
        ------
        NotInSpark
            With "spark": Spark has no plan for an operation that gives the rows that tasks give.
        """
        if is_spark(execution):
            from clonos.dataframes.execution import run_plans

            require_no_options(options, timeout_s)
            return run_plans(self._graph, self.plans(spark))
        from clonos.cluster.runs import run_job

        how = for_tasks(options, timeout_s)
        return run_job(self.compile(), spark, timeout_s=timeout_s, **how)

    def explain(self, spark: Any = None) -> str:
        """Where each operation runs: in tasks, and as Spark's plan, or why it has no plan.

        Parameters
        ----------
        spark
            A session; the active one by default. Without one, Spark's plans are not shown.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job()
        >>> rows = job.source(clonos.sources.from_batches([], "n long"), name="numbers")
        >>> rows.filter(lambda row: row.n > 1, name="some").sink(clonos.sinks.collect())
        >>> print(job.explain())  # doctest: +SKIP
        operator  tasks         slots  log            Spark's plan
        numbers   1             0      cuts of input  DataFrame
        some      1 in numbers  0      -              mapInArrow, the same operator
        collect   1 in numbers  0      -              sink
        """
        from clonos.dataframes.explained import explain

        try:
            plans = self.plans(spark)
        except NeedsSpark:
            plans = None
        return explain(self._graph, self.compile(), plans)

    def plans(self, spark: Any = None) -> Any:
        """The job as DataFrames, in this session or the active one."""
        from clonos.dataframes.plan import Plans
        from clonos.spark.session import active

        return Plans(active() if spark is None else spark, self._graph)

    def branch(
        self,
        *,
        at: int | str | datetime,
        until: int | str | datetime | None = None,
        replace: Any,
        **how: Any,
    ) -> Any:
        """Run changed code on the past of this job: what would have happened?

        The job may be running, stopped, complete or failed. It must have kept its past
        (``history=``). Nothing in it is changed; no sink is opened, and no effect is made.

        Parameters
        ----------
        at, until
            Where the branch begins and ends: the number of a point of the past, ``"oldest"``, or a
            time, which means the newest point at or before it. By default it ends with the log.
        replace
            A dict from operators' names to the functions (or ``Process``) that they have in the
            branch; or a whole :class:`clonos.Job` with the same tasks and channels.
        how
            ``calls``: what answers when the log has no answer. ``"stub"``: ``stand_in(fn, *args)``;
            without it the branch ends with ``Unanswered``. ``"live"``: the function itself, if
            ``ask`` names it; a :class:`clonos.Budget` limits how often. Effects are never made.

            ``reuse``: functions that give the same answer to the same question, any number of
            times. ``cost``: a function that takes an answer and returns what it cost.
            ``in_flight``: how many calls may be open in each task while it goes on with other rows.
            ``checkpoint_dir``, ``journal``: where the job, or a copy of it, is.

        Returns
        -------
        Branch
            With ``compare``, ``rows``, ``bill``; print it.

        Raises
        ------
        NothingToReplay
            The past is not kept, or rows can only be read with Spark.
        CannotReplace
            The changed code does not fit.
        Unanswered
            The changed code asks a question that nobody answers.

        Examples
        --------
        >>> branch = job.branch(at="14:03", replace={"score": strict_score})  # doctest: +SKIP
        >>> print(branch.compare("alerts", keys=["id"]))  # doctest: +SKIP
        alerts: 312 changed, 0 only_a, 3 only_b; 10000 rows of the job, 10003 of the branch
        """
        from clonos.branch import branch

        return branch(self, at=at, until=until, replace=replace, **how)

    def rewind(self, *, at: int | str | datetime, **how: Any) -> Any:
        """Take this job back to a point of its past; its next start goes on from there.

        The job must not run, and must have kept its past (``history=``). State, timers, open calls
        and the positions of sources are those of the point. Output that was delivered since stays
        where it is. New output belongs to a new generation, and no name of an output or of an
        effect is used again. The points of the past stay, too: you can go back, or forward, again.

        Parameters
        ----------
        at
            The number of a point, ``"oldest"``, or a time, which means the newest point at or
            before it.
        how
            ``section="score"``: only this operator, and all downstream of it; the job has settled.
            ``outputs="supersede"``: what ``collect`` and ``table`` sinks have delivered since is
            deleted; refused if there are others. ``dry_run=True``: only say what would happen.
            ``check_sources=False``: do not check whether sources still have the rows since then.
            ``checkpoint_dir``, ``journal``: where it is. ``sole_driver=True``: no driver runs.

        Returns
        -------
        Rewound
            Which point it is, and what each sink has delivered since; print it.

        Raises
        ------
        CannotRewind
            The job runs or is complete, a sink cannot take anything back, a source lacks rows, or
            the point lacks some that were on their way (``"uncoordinated"``). Nothing has changed.
        NothingToReplay
            There is no such point.

        Examples
        --------
        >>> print(job.rewind(at="14:03"))  # doctest: +SKIP
        the job is back at point 3 (2030-05-04 14:02:12+02:00)
        alerts[0] has delivered outputs 118 to 164 since
        they stay, and what comes now is of generation 1
        """
        from clonos.replay.rewind import rewind_with

        return rewind_with(self.compile(), at, how)

    def to_dataframe(
        self, stream: Stream, spark: Any, name: str | None, options: dict[str, Any]
    ) -> Any:
        """Run the job for the rows of one stream; see :meth:`Stream.to_dataframe`."""
        require_bounded(self._graph)
        if stream not in self._frames:
            stream.sink(collect(), name=name)
            self._frames[stream] = self._graph.vertices[-1].name
        result = self.run(spark, **options)
        return result.dataframe(self._frames[stream])

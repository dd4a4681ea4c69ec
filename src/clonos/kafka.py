"""What the Kafka source and sink share: a cluster's address, and what its errors mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from clonos.errors import DefinitionError, WrongType
from clonos.extras import imported

Partition = tuple[str, int]
"""Topic and number."""

LOG: Final = logging.getLogger("clonos.kafka")
"""What librdkafka says."""
REPEATED_S: Final = 10.0
"""A message is logged once in this time; librdkafka repeats it many times a second."""
METADATA_S: Final = 10.0
"""How long an answer about topics is waited for."""


class NotAgain(logging.Filter):
    """Logs a message once in :data:`REPEATED_S`, even if the milliseconds that it names differ.

    Examples
    --------
    >>> once = NotAgain()
    >>> lines = [logging.makeLogRecord({"msg": f"away for {n} ms"}) for n in range(3)]
    >>> [once.filter(line) for line in lines]
    [True, False, False]
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See :class:`logging.Filter`."""
        text = re.sub(r"[0-9]+ ?ms\b", "", record.getMessage())
        if record.created < self._said.get(text, -REPEATED_S) + REPEATED_S:
            return False
        if len(self._said) >= _TEXTS_MAX:
            self._said.clear()
        self._said[text] = record.created
        return True


_TEXTS_MAX: Final = 1000
LOG.addFilter(NotAgain())

_AWAY: Final = (
    "_ALL_BROKERS_DOWN",
    "_DESTROY_BROKER",
    "_RESOLVE",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_WAIT_COORD",
    "BROKER_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "GROUP_AUTHORIZATION_FAILED",  # librdkafka looks for a group; none is used
    "KAFKA_STORAGE_ERROR",  # of a leader, until there is another one
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNKNOWN_LEADER_EPOCH",
)


@dataclass(frozen=True, repr=False)
class Cluster:
    """A Kafka cluster, and how to reach it. No text that is made of it shows the options.

    Parameters
    ----------
    servers
        ``"host:port,host:port"``.
    options
        For librdkafka, such as ``{"security.protocol": "SSL"}``.

    Examples
    --------
    >>> Cluster("kafka:9092", {"sasl.password": "secret"})
    <Kafka at kafka:9092>
    """

    servers: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.servers:
            raise WrongType(
                f"servers={self.servers!r}", where="kafka", remedy='write "host:port,host:port"'
            )

    def __repr__(self) -> str:
        return f"<Kafka at {self.servers}>"

    def settings(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of librdkafka: the user's options, and `ours`, which they must not say.

        Raises
        ------
        WrongType
            They do.
        """
        for name in self.options:
            if name == "bootstrap.servers" or name in ours:
                raise WrongType(
                    f"the option {name!r} is not yours to set",
                    where=repr(self),
                    remedy="leave it out: what is promised rests on it",
                )
        return {**self.options, **ours, "bootstrap.servers": self.servers}

    def require_options(self, ours: Mapping[str, Any]) -> None:
        """Raise `WrongType` if users must not set an option, or librdkafka does not take it.

        Nobody is connected to, and no file of an option is read: it may be on executors only, as
        librdkafka may be itself.
        """
        self.settings(ours)
        try:
            librdkafka = driver()
        except DefinitionError:
            return
        try:
            librdkafka.Producer({**self.options, _NO_OPTION: ""})
        except librdkafka.KafkaException as exception:
            said = _PROPERTY.search(error_of(exception).str())
            if said is not None and said[1] != _NO_OPTION:
                raise self._wrong(said[1], is_known="No such" not in said[0]) from None
        except (TypeError, ValueError) as error:
            raise WrongType(f"options=: {error}", where=repr(self)) from None

    def _wrong(self, name: str, *, is_known: bool) -> WrongType:
        what = f"there is no option {name!r} of librdkafka"
        if is_known:
            what = f"librdkafka does not take the value of the option {name!r}"
        return WrongType(what, where=repr(self), remedy="correct it in options=")

    def client(self, kind: Callable[..., Any], settings: dict[str, Any]) -> Any:
        """A consumer or producer of librdkafka.

        Raises
        ------
        WrongType
            It cannot be made with these options: a file of certificates is missing, for instance.
        """
        try:
            return kind(settings, logger=LOG)
        except driver().KafkaException as exception:
            raise WrongType(
                f"librdkafka does not take the options: {error_of(exception).str()}",
                where=repr(self),
                remedy="correct options=, for the driver and all executors",
            ) from None


_NO_OPTION: Final = "clonos.no.such.option"
"""Said last, so that librdkafka looks at all options and then makes nothing."""
_PROPERTY: Final = re.compile(r'(?:No such c|C|c)onfiguration property:? "([^"]*)"')


def driver() -> Any:
    """The module confluent_kafka.

    Raises
    ------
    DefinitionError
        It is not installed.
    """
    return imported("confluent_kafka", extra="kafka", where="kafka")


def error_of(exception: BaseException) -> Any:
    """The ``KafkaError`` in what confluent_kafka has raised."""
    return exception.args[0]


def is_away(error: Any) -> bool:
    """Whether a ``KafkaError`` may pass by itself: brokers that are away or elect a leader.

    Examples
    --------
    >>> class TimedOut:
    ...     name = staticmethod(lambda: "_TIMED_OUT")
    ...     retriable = staticmethod(lambda: False)
    >>> is_away(TimedOut())
    True
    """
    return bool(error.retriable()) or error.name() in _AWAY


def edges(
    consumer: Any, partitions: Sequence[Partition], timeout_s: float
) -> dict[Partition, tuple[int, int]]:
    """The offsets of the first existing message of each partition, and of the next one to come.

    ``get_watermark_offsets`` asks two questions as well, but if only one of them is answered with
    an error (a leader is elected, say), it returns the other answer twice, and no error.

    Raises
    ------
    confluent_kafka.KafkaException
        Brokers do not answer, or answer with an error.
    """
    kafka = driver()
    found: list[list[int]] = []
    for edge in (kafka.OFFSET_BEGINNING, kafka.OFFSET_END) if partitions else ():
        asked = [kafka.TopicPartition(*partition, edge) for partition in partitions]
        answers = {
            (one.topic, one.partition): one
            for one in consumer.offsets_for_times(asked, timeout=timeout_s)
        }
        for answer in answers.values():
            if answer.error is not None:
                raise kafka.KafkaException(answer.error)
            if answer.offset < 0:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.OFFSET_NOT_AVAILABLE))
        found.append([answers[partition].offset for partition in partitions])
    return dict(zip(partitions, zip(*found, strict=True), strict=True)) if found else {}


def shown(partition: Partition) -> str:
    """A partition, as errors name it.

    Examples
    --------
    >>> shown(("orders", 3))
    'orders[3]'
    """
    topic, number = partition
    return f"{topic}[{number}]"

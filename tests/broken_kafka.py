"""librdkafka's mock cluster within the test's process, where its answers can be chosen."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

import pytest

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
ADD_PARTITIONS_TO_TXN: Final = 24
END_TXN: Final = 26
"""Kinds of requests, by the numbers that Kafka's protocol gives them."""

_AFTER_THE_HEAD: Final = 16
"""Where confluent_kafka's objects have the handle of librdkafka."""


class BrokenKafka:
    """Three brokers. The topics are made here, since nobody else is to ask for them."""

    def __init__(self) -> None:
        kafka = pytest.importorskip("confluent_kafka")
        folder = Path(kafka.__file__).parent.parent / "confluent_kafka.libs"
        found = sorted(folder.glob("librdkafka*.so*"))
        if not found:
            pytest.skip("librdkafka is not where confluent_kafka's wheel has it")
        self._errors = kafka.KafkaError
        self._library: Any = ctypes.CDLL(str(found[0]))
        self._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        self._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        settings = {"test.mock.num.brokers": 3, "bootstrap.servers": "mock", "log_level": 0}
        self.producer = kafka.Producer(settings)
        handle = ctypes.c_void_p.from_address(id(self.producer) + _AFTER_THE_HEAD)
        self._mock = ctypes.c_void_p(self._library.rd_kafka_handle_mock_cluster(handle))
        self._library.rd_kafka_mock_set_controller_id(self._mock, 1)  # it knows the topics' ids
        self.servers = self._library.rd_kafka_mock_cluster_bootstraps(self._mock).decode()

    def topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic."""
        self._library.rd_kafka_mock_topic_create(self._mock, name.encode(), partitions, 1)

    def again(self, name: str, partitions: int = 1) -> None:
        """Delete a topic, and make it again."""
        self._library.rd_kafka_mock_topic_delete(self._mock, name.encode())
        self.topic(name, partitions)

    def fail(self, request: int, *errors: str) -> None:
        """The next requests of this kind are answered with these errors."""
        codes = (ctypes.c_int * len(errors))(*(getattr(self._errors, name) for name in errors))
        self._library.rd_kafka_mock_push_request_errors_array(
            self._mock, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), codes
        )

"""Messages of an MQTT broker, acknowledged when they are durable.

The broker keeps a session for each client id. It sends unacknowledged messages again when a client
with that id connects again, in whichever process.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from clonos.errors import SourceError
from clonos.extras import imported
from clonos.sources.outage import Outage, Rarely
from clonos.sources.spec import Fail, Offer, Warn

CONNECT_S: Final = 10.0
SILENCE_S: Final = 20
"""After so long without a word the broker is pinged; after as long again it counts as gone."""
UNTHANKED: Final = 1000
"""How many messages the broker sends without waiting for acknowledgements."""
FULL_S: Final = 0.05
"""Time until a message that was refused for lack of room is offered again."""

_FOR_EVER: Final = 0xFFFF_FFFF
_PASSES: Final = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
"""Reason codes of MQTT 5 that may be temporary: unspecified, implementation specific, unavailable,
busy, quota exceeded, rate exceeded."""


@dataclass(frozen=True, repr=False)
class Mqtt:
    """An :class:`~clonos.sources.spec.Inlet`.

    Parameters
    ----------
    message_bytes
        A longer message fails the job. The broker is not told: it would leave out such messages.
    """

    host: str
    port: int
    topics: tuple[str, ...]
    client_id: str
    username: str | None
    password: str | None
    is_secure: bool
    message_bytes: int

    def __repr__(self) -> str:
        return f"<{self.place}>"

    @property
    def place(self) -> str:
        """The broker for messages, without the password."""
        return f"MQTT at {self.host}:{self.port}"

    def open(self, offer: Offer, fail: Fail, warn: Warn) -> Session:
        """See :class:`~clonos.sources.spec.Inlet`."""
        session = Session(self, offer, fail, warn)
        try:
            session.start()
        except BaseException:
            session.close()
            raise
        return session


class Session:
    """A connection and its successors.

    Attributes
    ----------
    connection
        Counts connections. An unacknowledged message of an earlier connection comes again with the
        same message id, which becomes free when it is acknowledged. A second acknowledgement, for
        the earlier delivery, could therefore acknowledge another message.
    """

    def __init__(self, mqtt: Mqtt, offer: Offer, fail: Fail, warn: Warn) -> None:
        self._mqtt, self._offer, self._fail, self._warn = mqtt, offer, fail, warn
        self._warn_of_end, self._warn_of_delay = Rarely(warn), Rarely(warn)
        self._outage = Outage(mqtt.place, warn, sleep=lambda _: None)
        self.connection = 0
        self._lock = threading.Lock()  # held while a message is acknowledged
        self._is_over = threading.Event()
        self._heard = threading.Event()
        self._refusal: SourceError | None = None
        client = imported("paho.mqtt.client", extra="mqtt", where="sources.mqtt")
        self._client: Any = client.Client(
            client.CallbackAPIVersion.VERSION2,
            client_id=mqtt.client_id,
            protocol=client.MQTTv5,
            manual_ack=True,
        )
        how = imported("paho.mqtt.subscribeoptions", extra="mqtt", where="sources.mqtt")
        # Each connection subscribes; what a topic retains comes only if it was no subscriber yet.
        self._how = how.SubscribeOptions(
            qos=1, retainHandling=how.SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        )
        self._client.username_pw_set(mqtt.username, mqtt.password)
        if mqtt.is_secure:
            self._client.tls_set()
        self._client.reconnect_delay_set(1, 10)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def start(self) -> None:
        """Connect, and subscribe.

        Raises
        ------
        SourceError
            The broker cannot be reached, or refuses.
        """
        packets = imported("paho.mqtt.packettypes", extra="mqtt", where="sources.mqtt")
        said = imported("paho.mqtt.properties", extra="mqtt", where="sources.mqtt")
        properties = said.Properties(packets.PacketTypes.CONNECT)
        properties.SessionExpiryInterval = _FOR_EVER
        properties.ReceiveMaximum = UNTHANKED
        try:
            self._client.connect(
                self._mqtt.host,
                self._mqtt.port,
                keepalive=SILENCE_S,
                clean_start=False,
                properties=properties,
            )
        except (OSError, ValueError) as error:
            raise self._failed(f"it cannot be reached: {error}") from error
        self._client.loop_start()
        if not self._heard.wait(CONNECT_S):
            raise self._failed("it does not answer")
        if self._refusal is not None:
            raise self._refusal

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""
        self._is_over.set()
        with suppress(OSError, ValueError):
            self._client.disconnect()
        self._client.loop_stop()

    def thank(self, message: Any, connection: int, *, is_durable: bool) -> None:
        """Acknowledge a message, if its connection is still the current one."""
        with self._lock:
            if is_durable and message.qos and connection == self.connection:
                self._client.ack(message.mid, message.qos)

    def _on_connect(self, client: Any, *said: Any) -> None:
        _, flags, reason, _ = said
        if reason.is_failure:
            self._refuse(f"it refuses the connection: {reason}", may_pass=reason.value in _PASSES)
        else:
            if self.connection and not flags.session_present:
                self._warn(
                    f"{self._mqtt.place}: it no longer knows of the job's session, so what was "
                    "published meanwhile is lost. Have it keep sessions on a disk, and for longer."
                )
            try:
                client.subscribe([(topic, self._how) for topic in self._mqtt.topics])
            except ValueError as error:  # before the broker has seen it
                topics = ", ".join(self._mqtt.topics)
                self._refuse(f"no broker takes these topics ({topics}): {error}", may_pass=False)

    def _on_subscribe(self, client: Any, *said: Any) -> None:
        del client
        _, _, reasons, _ = said
        wrong = [reason for reason in reasons if reason.is_failure]
        if wrong:
            self._refuse(f"it refuses a topic: {', '.join(map(str, wrong))}", may_pass=False)
        else:
            self._outage.over()
        self._heard.set()

    def _on_connect_fail(self, *said: Any) -> None:
        del said
        if not self._is_over.is_set():
            self._outage.wait("it cannot be reached")

    def _on_disconnect(self, *said: Any) -> None:
        with self._lock:
            self.connection += 1
        if not self._is_over.is_set():
            what = f"the connection has ended{f' ({said[3]})' if said else ''}"
            self._tell(self._warn_of_end, what)
            self._outage.wait(what)

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        del client, userdata
        connection = self.connection
        if (nbytes := len(message.payload)) > self._mqtt.message_bytes:
            self._end(
                SourceError(
                    f"a message of {_topic_of(message)!r} has {nbytes:,} bytes, more than the "
                    f"{self._mqtt.message_bytes:,} that are taken",
                    where=self._mqtt.place,
                    remedy="give a larger message_bytes=, and start the job again: the broker "
                    "sends the message again, unless it was published with QoS 0",
                )
            )
            return

        def thank(is_durable: bool) -> None:
            self.thank(message, connection, is_durable=is_durable)

        # While this waits, nothing is read, so the broker waits, too.
        topic = _topic_of(message)
        while not self._offer(bytes(message.payload), None, topic, thank):
            if self._is_over.is_set():
                return
            time.sleep(FULL_S)

    def _refuse(self, why: str, *, may_pass: bool) -> None:
        """A refusal at the start is an error. A later one is, too, unless it may be temporary."""
        if not self._heard.is_set():
            self._refusal = self._refusal or self._failed(why)
            self._heard.set()
        elif may_pass:
            self._tell(self._warn_of_delay, why)
        else:  # the client would keep trying until the job has ended
            self._end(self._failed(why))

    def _end(self, error: SourceError) -> None:
        """End the job, once."""
        if self._refusal is None:
            self._refusal = error
            self._fail(error)

    def _tell(self, warn: Warn, what: str) -> None:
        warn(
            f"{self._mqtt.place}: {what}. It is tried again; the broker keeps what is published "
            "meanwhile, as long as it is set to."
        )

    def _failed(self, what: str) -> SourceError:
        return SourceError(
            what,
            where=self._mqtt.place,
            remedy="check that the driver reaches the broker, that it speaks MQTT 5, and that "
            "user, password and topics are right",
        )


def _topic_of(message: Any) -> str:
    """The topic of a message. Some brokers take any bytes for one; an exception would end the
    client's thread, and nothing would be read any more."""
    try:
        return str(message.topic)
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")

"""One JVM with Kafka on its class path, called through py4j: Kafka's own classes, without a compiler.

A clock and a scheduler that tests control are created in that JVM from method handles, so that Kafka's calls do not leave it:
a call on the proxy looks up its result in a map by the method's name.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import IO, Any

from py4j import java_gateway, protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.jvm import BROKER_CLASSES, SHORT_LIVED, with_classes
from tests.kafka.jars import LOGGING_CONFIG, REFERENCE, require_kafka_classpath

#: py4j needs these for collections of the JDK, Kafka to unmap its indexes at once
_JAVA_OPTIONS = (
    "-Xmx1g",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={LOGGING_CONFIG}",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.util.stream=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.invoke=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)

#: where Kafka's internal classes have been, the oldest places first: 4.0 has both ``UnifiedLog`` and uses the older one
_PLACES = (
    "kafka.log.", "kafka.server.", "kafka.utils.",
    "org.apache.kafka.common.record.internal.", "org.apache.kafka.common.record.", "org.apache.kafka.server.util.",
    "org.apache.kafka.storage.internals.log.", "org.apache.kafka.storage.internals.utils.",
    "org.apache.kafka.storage.log.metrics.",
)  # fmt: skip


def java_executable() -> str:
    """The Java to run: that of ``JAVA_HOME``, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"  # noqa: PTH118


class Clock:
    """A ``org.apache.kafka.common.utils.Time`` that only a test advances.

    ``java`` is the object to pass to Kafka. ``sleep`` returns at once and does not advance it.
    """

    def __init__(self, gateway: Gateway, now_ms: int) -> None:
        self._answers, self.java = gateway.answering("org.apache.kafka.common.utils.Time")
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        """Sets it to ``now_ms`` milliseconds since the epoch."""
        self.now_ms = now_ms
        self._answers.put("milliseconds", now_ms)
        self._answers.put("hiResClockMs", now_ms)
        self._answers.put("nanoseconds", now_ms * 1_000_000)


class Gateway:
    """The JVM, with the classes of one version of Kafka. ``jvm`` finds any class by its name; ``cls`` also caches it."""

    def __init__(self, *more_jars: str, version: str = REFERENCE) -> None:
        self.version = version
        self.release = tuple(int(part) for part in version.split("."))
        self.log: IO[bytes] = tempfile.NamedTemporaryFile(prefix="kafka-gateway-", suffix=".log")  # noqa: SIM115
        # the class path of a broker, which has py4j, too: so both map the same archive
        first, _, others = require_kafka_classpath(*more_jars, version=version).partition(os.pathsep)
        port, token, self._process = launch_gateway(
            jarpath=first,
            classpath=others,
            javaopts=[*_JAVA_OPTIONS, *(with_classes(BROKER_CLASSES) if version == REFERENCE else SHORT_LIVED)],
            die_on_exit=True,
            redirect_stderr=self.log,
            java_path=java_executable(),
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True, auto_field=True)
        self.java = JavaGateway(gateway_parameters=parameters)
        self.jvm: Any = self.java.jvm
        self._classes: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._kinds: dict[str, Any] = {}
        self._statics: dict[tuple[str, str], Any] = {}
        self._kept: dict[str, Any] = {}

    def close(self) -> None:
        """Ends the JVM."""
        self.java.shutdown()
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self.log.close()

    def cls(self, name: str) -> Any:
        """The class of that fully qualified name, for its constructors and static methods."""
        if name not in self._classes:
            found: Any = self.jvm
            for part in name.split("."):
                found = getattr(found, part)
            self._classes[name] = found
        return self._classes[name]

    def named(self, name: str) -> str:
        """The full name of a class that is in different packages of different versions, of its simple name."""
        if name not in self._names:
            found = [place + name for place in _PLACES if self.exists(place + name)]
            if not found:
                raise LookupError(f"Kafka {self.version} has no class {name}")
            self._names[name] = found[0]
        return self._names[name]

    def exists(self, name: str) -> bool:
        """Whether this version has the class of that full name."""
        try:
            with unconverted_errors():
                return self.kind(name) is not None
        except protocol.Py4JJavaError:
            return False

    def new(self, name: str, *arguments: Any) -> Any:
        """An instance of the class of that simple name."""
        return self.cls(self.named(name))(*arguments)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` returned on its first call in this JVM, whose objects no other JVM knows."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def kind(self, name: str) -> Any:
        """The ``java.lang.Class`` of that fully qualified name."""
        if name not in self._kinds:
            self._kinds[name] = self.cls("java.lang.Class").forName(name)
        return self._kinds[name]

    def array(self, kind: str, items: list[Any]) -> Any:
        """A Java array of ``items``; ``kind`` is the full name of their class."""
        made = self.java.new_array(self.cls(kind), len(items))
        for position, item in enumerate(items):
            made[position] = item
        return made

    @property
    def in_scala(self) -> bool:
        """Whether this version's log and cleaner are written in Scala."""
        return self.release < (4, 1)

    def option(self, value: int | None) -> Any:
        """An optional ``Long`` as its log and cleaner take it: py4j alone would send a small number as an ``Integer``."""
        if value is None:
            return self.cls("scala.Option" if self.in_scala else "java.util.Optional").empty()
        optional = self.cls("java.util.stream.LongStream").of(value).boxed().findFirst()
        return self.cls("scala.jdk.javaapi.OptionConverters").toScala(optional) if self.in_scala else optional

    def call(self, target: Any, method: str) -> Any:
        """Calls a method without arguments, of any visibility."""
        found = target.getClass().getDeclaredMethod(method, self.array("java.lang.Class", []))
        found.setAccessible(True)
        return found.invoke(target, self.array("java.lang.Object", []))

    def call_static(self, class_name: str, method: str, *arguments: Any) -> Any:
        """Calls a static method of any visibility, or that of a Scala object; its name must be unique in its class."""
        if (class_name, method) not in self._statics:
            scala = self.exists(f"{class_name}$")
            kind = self.kind(f"{class_name}$" if scala else class_name)
            # Scala puts the owner before the name of a private method that it makes public
            found = next(m for m in kind.getDeclaredMethods() if m.getName().split("$$")[-1] == method)
            found.setAccessible(True)
            self._statics[class_name, method] = found, getattr(self.cls(f"{class_name}$"), "MODULE$") if scala else None
        found, owner = self._statics[class_name, method]
        return found.invoke(owner, self.array("java.lang.Object", list(arguments)))

    def answering(self, interface: str) -> tuple[Any, Any]:
        """A map and an implementation of ``interface`` whose every method returns the map's value for its name.

        A missing entry is null. Numbers are returned as ``long``.
        """
        answers = self.cls("java.util.HashMap")()
        kind = self.kind(interface)
        kinds = self.array("java.lang.Class", [kind])
        proxies, handler = self.cls("java.lang.invoke.MethodHandleProxies"), self.kind("java.lang.reflect.InvocationHandler")
        handles = proxies.asInterfaceInstance(handler, self._answer.bindTo(answers))
        return answers, self.cls("java.lang.reflect.Proxy").newProxyInstance(kind.getClassLoader(), kinds, handles)

    @cached_property
    def _answer(self) -> Any:
        """A method handle (answers, proxy, method, arguments) -> long-if-number(answers.get(method.getName()))."""
        handles = self.cls("java.lang.invoke.MethodHandles")
        lookup = handles.lookup()
        type_of = self.cls("java.lang.invoke.MethodType").methodType
        anything, text = self.kind("java.lang.Object"), self.kind("java.lang.String")
        method, number = self.kind("java.lang.reflect.Method"), self.kind("java.lang.Number")
        many = self.array("java.lang.Object", []).getClass()
        get = lookup.findVirtual(self.kind("java.util.Map"), "get", type_of(anything, anything))
        name = lookup.findVirtual(method, "getName", type_of(text)).asType(type_of(anything, method))
        answer = handles.filterArguments(get, 1, self.array("java.lang.invoke.MethodHandle", [name]))
        answer = handles.filterReturnValue(answer, self._longs(handles, lookup, type_of, anything, number))
        answer = handles.dropArguments(answer, 1, self.array("java.lang.Class", [anything]))
        return handles.dropArguments(answer, 3, self.array("java.lang.Class", [many]))

    def _longs(self, handles: Any, lookup: Any, type_of: Any, anything: Any, number: Any) -> Any:
        primitive = self.cls("java.lang.Long").TYPE
        boolean = self.cls("java.lang.Boolean").TYPE
        widen = lookup.findVirtual(number, "longValue", type_of(primitive)).asType(type_of(anything, anything))
        is_number = lookup.findVirtual(self.kind("java.lang.Class"), "isInstance", type_of(boolean, anything)).bindTo(number)
        return handles.guardWithTest(is_number, widen, handles.identity(anything))

    @cached_property
    def idle_scheduler(self) -> Any:
        """A ``Scheduler`` that runs nothing: tasks that Kafka schedules (deletions, flushes) are never run."""
        future_answers, future = self.answering("java.util.concurrent.ScheduledFuture")
        future_answers.put("cancel", True)
        answers, scheduler = self.answering(self.named("Scheduler"))
        answers.put("schedule", future)
        answers.put("scheduleOnce", future)
        # the defaults of the Scala interface's arguments: delay, period, unit
        answers.put("schedule$default$3", 0)
        answers.put("schedule$default$4", -1)
        answers.put("schedule$default$5", self.cls("java.util.concurrent.TimeUnit").MILLISECONDS)
        return scheduler

    def running_scheduler(self) -> Any:
        """A real ``KafkaScheduler``; its ``shutdown()`` waits for tasks that are due and drops the others."""
        name = self.named("KafkaScheduler")
        scheduler = self.cls(name)(1, "kafka-scheduler-", True) if name.startswith("kafka.") else self.cls(name)(1)
        scheduler.startup()
        return scheduler

    @cached_property
    def _mapper(self) -> Any:
        jackson = "com.fasterxml.jackson."
        mapper = self.cls(jackson + "databind.ObjectMapper")()
        mapper.registerModule(self.cls(jackson + "datatype.jdk8.Jdk8Module")())
        access = self.cls(jackson + "annotation.PropertyAccessor")
        seen = self.cls(jackson + "annotation.JsonAutoDetect$Visibility")
        mapper.setVisibility(access.ALL, seen.NONE)
        mapper.setVisibility(access.FIELD, seen.ANY)
        empty_is_fine = self.cls(jackson + "databind.SerializationFeature").FAIL_ON_EMPTY_BEANS
        return mapper.disable(empty_is_fine)

    def fields(self, target: Any) -> Any:
        """All fields of an object or of a list of them, of any visibility, in one call: bytes come as base64 text."""
        return json.loads(self._mapper.writeValueAsString(target))


#: brokers are read by several threads
_one_at_a_time = threading.RLock()


@contextmanager
def unconverted_errors() -> Iterator[None]:
    """Errors of the JVM are py4j's own in the block. A Spark session converts those of any JVM, as if it were Spark's."""
    with _one_at_a_time:
        converting = java_gateway.get_return_value
        java_gateway.get_return_value = protocol.get_return_value
        try:
            yield
        finally:
            java_gateway.get_return_value = converting


_shared: dict[str, Gateway] = {}


def shared_gateway(version: str = REFERENCE) -> Gateway:
    """One gateway of each version for the whole process, ended with it."""
    if version not in _shared:
        _shared[version] = Gateway(version=version)
        atexit.register(_shared[version].close)
    return _shared[version]

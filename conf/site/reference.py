"""The pages of the reference, from the code: options from the parsers, settings from their entries, fields, metrics and reason
codes from classes, their docstrings and the ``#:`` comments of their members.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import Enum
from itertools import takewhile
from types import MappingProxyType, ModuleType

import compaction
from compaction import metrics, report, run_report
from compaction.certifier import certificate
from compaction.cli.console import COMMANDS, PROGRAM, load
from compaction.cli.parser import Parser
from compaction.commands.runs import provenance
from compaction.config import entries
from compaction.config.entries import Entry
from compaction.erasure import erasure_report
from compaction.policies import comparison
from compaction.rules import log_to_clean, segment_retention

#: the codes that reports contain, by heading, module and class
_CODES = (
    ("Status of a log", report, report.LogStatus),
    ("Status of a run", report, report.RunStatus),
    ("Why a log is skipped", log_to_clean, log_to_clean.SkipCause),
    ("Why a segment is deleted", segment_retention, segment_retention.DeletionCause),
    ("Outcome of a policy", comparison, comparison.OutcomeStatus),
    ("Result of a verification", certificate, certificate.Status),
)
#: the values in reports of comparisons
_COMPARED = (
    ("A policy over all logs", comparison.PolicyTotals),
    ("A log under all policies", comparison.ComparedLog),
    ("The size of a log", comparison.LogTotals),
    ("Records by age and place", comparison.Distribution),
    ("The keys of a log", comparison.KeyFigures),
    ("How often keys occur", comparison.RepetitionRange),
    ("A log under one policy", comparison.Outcome),
)


def options() -> str:
    """The complete help of each command."""
    parts, given = [], sys.argv
    for command, purpose in COMMANDS.items():
        # parsers show commands as this process was started
        sys.argv = [f"{PROGRAM} {command}"]
        try:
            text = Parser(load(command).OPTIONS).format_help()
        finally:
            sys.argv = given
        parts.append(f"## {command}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n```text\n{text}```\n")
    return "# Help of each command\n\n" + "\n".join(parts)


def api() -> str:
    """The functions of the Python API, its results and errors, from their docstrings."""
    about = "All names are those of the package `compaction`; [Python](python.md) shows their use."
    parts, rows = ["# Python API", "", about], []
    for name in compaction.__all__:
        found = getattr(compaction, name)
        if inspect.isfunction(found):
            parts += ["", f"## {name.replace('_', ' ')}", "", "```python", *_signature(found), "```", "", _docstring(found)]
        else:
            rows.append((f"`{name}`", _row_text(described(found).partition("\n\n")[0].replace("\n", " "))))
    return "\n".join([*parts, "", "## Results and errors", "", *table(("class", "meaning"), rows)]) + "\n"


def _signature(function: Callable[..., object]) -> list[str]:
    """The signature with a line for each parameter."""
    own = inspect.signature(function)
    rows = [f"    {each.name}: {each.annotation}{_default(each)}," for each in own.parameters.values()]
    return [f"{function.__name__}(", *rows, f") -> {own.return_annotation}"]


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f" = {parameter.default!r}"


def _docstring(found: object) -> str:
    """A docstring as Markdown: its example as code, its parameters and errors as a list."""
    lines, example = [], False
    for line in plain(inspect.getdoc(found) or "").splitlines():
        in_example = line.startswith(">>>") or (example and line.strip() != "")
        if in_example != example:
            lines.append("```pycon" if in_example else "```")
        example = in_example
        lines.append(re.sub(r"^:(?:param|raises|ivar) ([\w.]+): ", r"- `\1`: ", line))
    return "\n".join([*lines, *(["```"] if example else [])])


def settings() -> str:
    """The entries of topics and brokers that have an effect."""
    lines = [
        "# Settings", "", "The settings of Kafka that a log at rest depends on. All others are accepted and have no effect.",
        "The order of their sources is in the help of [each command](commands.md).", "",
    ]  # fmt: skip
    for title, found in (("Topics", entries.TOPIC_ENTRIES), ("Brokers", entries.BROKER_ENTRIES)):
        rows = [(f"`{each.name}`", each.kind.value, _shown(each), _row_text(each.doc), _names(each)) for each in found.values()]
        lines += [f"## {title}", "", *table(("name", "type", "default", "meaning", "default set by"), rows), ""]
    return "\n".join(lines)


def _shown(entry: Entry) -> str:
    default = ",".join(entry.default) if isinstance(entry.default, list | tuple) else entry.default
    return "none" if default is None else f"`{default}`"


def _names(entry: Entry) -> str:
    return ", ".join(f"`{synonym}`" for synonym in entry.synonyms)


def report_page() -> str:
    """The fields of the reports of runs and comparisons."""
    parts = [
        "# Report", "", markdown(run_report), "", *shape("A log", report, report.LogReport),
        *shape("A wave", report, report.WaveReport), *shape("The rules of a version", report, report.VersionUsed),
        "", "## Erasures", "", markdown(erasure_report),
        "", "## Calls", "", markdown(provenance),
        "", "## Comparisons of policies", "", markdown(comparison), "",
    ]  # fmt: skip
    for title, found in _COMPARED:
        parts += shape(title, comparison, found)
    return "\n".join(parts)


def shape(title: str, module: ModuleType, found: type) -> list[str]:
    """A dataclass: its name in tables of types, its docstring, and a table of its fields with their meanings."""
    comments = members(module, found)
    rows = [(f"`{each.name}`", f"`{each.type}`".replace("|", "or"), comments[each.name]) for each in fields(found)]
    about = f"Type `{found.__name__}`. {described(found)}"
    return [f"### {title}", "", about, "", *table(("field", "type", "meaning"), rows), ""]


def metrics_page() -> str:
    """The metrics of runs and comparisons."""
    return f"# Metrics\n\n## Runs\n\n{markdown(metrics)}\n\n## Comparisons\n\n{markdown(comparison.comparison_metrics)}\n"


def reasons() -> str:
    """The codes of statuses and reasons."""
    parts = ["# Reason codes", ""]
    for title, module, codes in _CODES:
        comments = members(module, codes)
        rows = [(f"`{each.value}`", comments[each.name]) for each in codes]
        parts += [f"## {title}", "", described(codes), "", *table(("code", "meaning"), rows), ""]
    return "\n".join(parts)


def described(found: type) -> str:
    """The docstring of a class.

    :raises ValueError: it has none of its own
    """
    if not found.__dict__.get("__doc__") or found.__doc__ == Enum.__doc__:
        raise ValueError(f"{found.__module__}.{found.__name__} has no docstring for the reference")
    return plain(inspect.getdoc(found) or "")


def members(module: ModuleType, found: type) -> dict[str, str]:
    """The members of an enum, or the fields of a dataclass, each with the ``#:`` comment above it, which describes it.

    :raises ValueError: one has no comment
    """
    source = inspect.getsource(module)
    lines = source.splitlines()
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == found.__name__).body
    comments = {}
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name):
            above = list(takewhile(lambda line: line.startswith("#: "), map(str.strip, lines[node.lineno - 2 :: -1])))
            if not above:
                raise ValueError(f"{module.__name__}.{found.__name__}.{target.id} has no #: comment above it")
            comments[target.id] = _row_text(plain(" ".join(line.removeprefix("#: ") for line in reversed(above))))
    return comments


def markdown(found: ModuleType | Callable[..., object]) -> str:
    """A docstring, with each row of its tables on one line."""
    text = plain(inspect.getdoc(found) or "")
    lines: list[str] = []
    for line in text.splitlines():
        if lines and lines[-1].startswith("| ") and not lines[-1].endswith(" |"):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines)


def plain(text: str) -> str:
    """Docstring markup as Markdown."""
    return text.replace("``", "`")


def _row_text(text: str) -> str:
    return text.replace("|", "\\|").replace("__", "\\_\\_")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """The lines of a table."""
    return ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]


PAGES: MappingProxyType[str, Callable[[], str]] = MappingProxyType(
    {
        "commands.md": options,
        "api.md": api,
        "settings.md": settings,
        "report.md": report_page,
        "metrics.md": metrics_page,
        "reasons.md": reasons,
    }
)

"""A YAML text as plain data, with the line of every key, and everything that is wrong with it.

Nodes are composed by PyYAML and turned into data here: PyYAML's own constructor lets a later key silently replace an
earlier one, forgets lines, and turns `0660` into 432.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vllm_supervisor.config.regular import read_regular
from vllm_supervisor.errors import Problem

Loc = tuple[str | int, ...]
"""Where a value stands: `("engine", "vllm", "extra_args", 0)`."""

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Values after aliases are expanded: nine lines of aliases can otherwise ask for a billion."""
MAX_DEPTH = 40

_TAG = "tag:yaml.org,2002:"
UNREADABLE = "create it, make it readable, or name another one with -c FILE"
EMPTY = "write at least engine.vllm.model"
NO_MAPPING = "begin with `engine:`"
"""Remedies that fit our own file alone."""
_KEEP = "keep one of them"


class WrittenInt(int):
    """A whole number that remembers how it was written: `--seed 007`, `mode: 0660`."""

    text: str


class WrittenFloat(float):
    """A number that remembers how it was written: `1.10` is a version as often as a number."""

    text: str


@dataclass(slots=True)
class Document:
    """What a YAML text says. `data` holds what could be read, also when there are problems."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Loc, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def dotted(loc: Loc) -> str:
    """Return the key as users write it: `engine.vllm.extra_args[0]`."""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def read(path: Path) -> Document:
    """Read a file. Never raises for what the file is or holds: that is in `problems`."""
    name = str(path)
    try:
        raw = read_regular(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Document(name, problems=[Problem(name, "", f"cannot be read: {why}", UNREADABLE)])
    if len(raw) > MAX_BYTES:
        why, remedy = f"is larger than {MAX_BYTES} bytes", "a configuration is a few lines; is this the right file?"
        return Document(name, problems=[Problem(name, "", why, remedy)])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        why = f"is not UTF-8 (byte 0x{raw[error.start]:02x})"
        return Document(name, problems=[Problem(f"{name}:{line}", "", why, "save the file as UTF-8")])
    return parse(text, name)


def parse(text: str, name: str) -> Document:
    """Read a text. `name` is what problems call it."""
    document = Document(name)
    node = _compose(text, document)
    if document.problems:
        return document
    if node is None:
        document.problems.append(Problem(f"{name}:1", "", "is empty", EMPTY))
        return document
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        why = f"is {kind} at the top, not a mapping"
        document.problems.append(Problem(f"{name}:{_line(node)}", "", why, NO_MAPPING))
        return document
    reader = _Reader(document)
    document.lines[()] = _line(node)
    try:
        document.data = reader.mapping(node, (), MAX_DEPTH)
    except _TooMuchError as error:
        document.problems.append(Problem(f"{name}:{error.line}", "", str(error), "write it out flat, without aliases"))
    return document


def parse_value(text: str, name: str, key: str) -> tuple[Any, list[Problem]]:
    """Read one value given outside a file, such as `[--a, b]`."""
    document = Document(name)
    node = _compose(text, document)
    if node is not None and not document.problems:
        reader = _Reader(document)
        try:
            return reader.value(node, (), MAX_DEPTH), _elsewhere(document.problems, name, key)
        except _TooMuchError as error:
            document.problems.append(Problem(name, "", str(error), "write it out flat, without aliases"))
    return None, _elsewhere(document.problems, name, key)


def _elsewhere(problems: list[Problem], name: str, key: str) -> list[Problem]:
    return [Problem(name, key, problem.why, problem.remedy) for problem in problems]


def _compose(text: str, document: Document) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        document.problems.append(Problem(document.name, "", "is nested too deeply", "write it out flat"))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        why = f"holds a character that YAML does not allow (#x{int(error.character):04x})"
        document.problems.append(Problem(f"{document.name}:{line}", "", why, "remove it"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{document.name}:{mark.line + 1}" if mark else document.name
        why = " ".join(f"is not valid YAML: {error.problem or error.context}".split())
        document.problems.append(
            Problem(where, "", why, "check indentation, quotes and brackets on and above this line")
        )
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: PyYAML lets chr() and int() of a broken escape or directive through.
        why = " ".join(f"is not valid YAML: {error}".split())
        document.problems.append(Problem(document.name, "", why, "check the file's first lines and its escapes"))
    else:
        return node
    return None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _TooMuchError(Exception):
    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


class _Reader:
    """Turns nodes into data, spending a budget of values."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_NODES

    def value(self, node: yaml.Node, loc: Loc, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError(f"has more than {MAX_NODES} values", _line(node))
        if depth == 0:
            raise _TooMuchError(f"is nested more than {MAX_DEPTH} deep, or holds itself", _line(node))
        self._document.lines.setdefault(loc, _line(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, loc, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*loc, index), depth - 1) for index, child in enumerate(node.value)]
        return self._scalar(node, loc)

    def mapping(self, node: yaml.MappingNode, loc: Loc, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        seen: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, loc, "has a key that is not a plain word", "write `name: value`")
                continue
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            key = str(key_node.value)
            if key in seen:
                why = f"appears twice (first on line {seen[key]})"
                self._problem(key_node, (*loc, key), why, _KEEP)
                continue
            seen[key] = _line(key_node)
            self._document.lines[(*loc, key)] = _line(key_node)
            out[key] = self.value(value_node, (*loc, key), depth - 1)
        for value_node in merged:
            self._merge(value_node, out, loc, depth)
        return out

    def _merge(self, node: yaml.Node, out: dict[str, Any], loc: Loc, depth: int) -> None:
        """Fill in what `<<` brings; keys written out win, as YAML says."""
        self._left -= 1
        if self._left < 0 or depth == 0:
            raise _TooMuchError("has too many or too deep merges", _line(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in self.mapping(node, loc, depth - 1).items():
                out.setdefault(key, value)
        elif isinstance(node, yaml.SequenceNode):
            for child in node.value:
                self._merge(child, out, loc, depth - 1)
        else:
            self._problem(node, loc, "merges (<<) something that is not a mapping", "merge an alias of a mapping")

    def _scalar(self, node: yaml.Node, loc: Loc) -> Any:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "str" | "timestamp" | "value":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() in {"yes", "true", "on"}
            case "int" | "float" as kind:
                # In YAML 1.1, `22:22` is 1342, base 60. Nobody means that.
                return text if ":" in text else _number(kind, text)
            case _:
                self._problem(node, loc, f"has the tag {node.tag}, which is not supported", "write the value plainly")
                return None

    def _problem(self, node: yaml.Node, loc: Loc, why: str, remedy: str) -> None:
        where = f"{self._document.name}:{_line(node)}"
        self._document.problems.append(Problem(where, dotted(loc), why, remedy))


def _number(kind: str, text: str) -> Any:
    """Read a number as YAML 1.1 does; what looks like one and is none (`0b_`, 5,000 digits) stays text."""
    node = yaml.ScalarNode(tag=f"{_TAG}{kind}", value=text)
    maker = yaml.constructor.SafeConstructor()
    try:
        if kind == "int":
            whole = WrittenInt(maker.construct_yaml_int(node))
            whole.text = text
            return whole
        number = WrittenFloat(maker.construct_yaml_float(node))
    except (ValueError, OverflowError, IndexError):
        return text
    number.text = text
    return number

"""Strict YAML: no duplicate keys, no integers beyond 64 bits, no endless expansion of aliases."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_MERGE = "tag:yaml.org,2002:merge"
_LARGEST = 2**63
# Maximum after expanding aliases, with which a few lines could otherwise fill any memory.
_NODES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Refuses what `yaml.safe_load` accepts silently."""

    def get_single_node(self) -> Node | None:
        node = super().get_single_node()
        if node is not None:
            _expanded(node, {}, set())
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise _error(key, "a key must be text or a number")
            if (key.tag, key.value) in seen and key.tag != _MERGE:
                raise _error(key, f"duplicate key {key.value!r}")
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: ScalarNode) -> int:
        try:
            value = int(super().construct_yaml_int(node))
        except ValueError:
            value = _LARGEST
        if abs(value) >= _LARGEST:
            raise _error(node, "an integer must be between -2^63 and 2^63")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _error(node: Node, problem: str) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)


def _expanded(node: Node, sizes: dict[int, int], above: set[int]) -> int:
    """Returns the number of nodes in a node with all aliases expanded."""
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in above:
        raise _error(node, "an alias is inside the value that it refers to")
    above.add(id(node))
    size = 1
    if isinstance(node, SequenceNode):
        size += sum(_expanded(item, sizes, above) for item in node.value)
    elif isinstance(node, MappingNode):
        size += sum(_expanded(part, sizes, above) for item in node.value for part in item)
    above.remove(id(node))
    if size > _NODES:
        raise _error(node, f"its aliases expand to more than {_NODES:,} values")
    sizes[id(node)] = size
    return size


def parse_yaml(text: str) -> Any:
    """Parses YAML into plain data.

    Raises:
        ValueError: not YAML, a duplicate key, an integer that is too large, an impossible date, or too deep
            nesting; the message is one line with line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None

"""Options in YAML, read to plain values: no tag makes an object, and no file grows in memory."""

from pathlib import Path
from typing import Any

import yaml

from tfexport.errors import CheckpointError
from tfexport.file_access import open_file

_MOST_BYTES, _MOST_VALUES, _DEEPEST = 2**16, 20_000, 32


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Tags of a program's own classes are left out: what they stand before is read as it is."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merges, which can multiply at every level."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("it merges mappings into one another")

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse nodes inside one another that are deeper than options are."""
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError("it holds more values than options do")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def read_tagged(self, suffix: str, node: yaml.Node) -> Any:
        """A node with a tag that is not of YAML."""
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)
        return self.construct_scalar(node)


_PlainLoader.add_multi_constructor("", _PlainLoader.read_tagged)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file.

    Raises:
        CheckpointError: missing, damaged, no mapping, or more than options are.
    """
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None
    return parse_yaml(content, str(path))


def parse_yaml(content: bytes, name: str) -> dict[str, Any]:
    """The mapping in YAML's text; ``name`` begins the message if there is none.

    Raises:
        CheckpointError: damaged, no mapping, or more than options are.
    """
    if len(content) > _MOST_BYTES:
        raise CheckpointError(f"{name}: more than {_MOST_BYTES} bytes, so no options.")
    try:
        values = yaml.load(content, Loader=_PlainLoader)
        if not isinstance(values, dict):
            raise yaml.YAMLError(f"it holds a {type(values).__name__}, not a mapping")
        _check_size(values)
    except (
        yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError,
        RecursionError,
    ) as error:  # fmt: skip
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(f"{name}: not readable as YAML: {reason}.") from None
    return values


def _check_size(values: Any) -> None:
    """Refuse values that are many, or deep, when every alias is followed."""
    left, count = [(values, 0)], 0
    while left:
        value, depth = left.pop()
        count += 1
        if count > _MOST_VALUES or depth > _DEEPEST:
            raise yaml.YAMLError("it holds more values than options do")
        if isinstance(value, int) and value.bit_length() > 64:
            raise yaml.YAMLError("it holds a number that no option has")
        if isinstance(value, dict):
            left += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list | tuple | set):
            left += [(item, depth + 1) for item in value]

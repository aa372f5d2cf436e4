"""Registries of named rules: their entries, and the class of all registries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic.fields import FieldInfo

from troll.algorithms.aggregation import check_aggregation
from troll.common.errors import UserError, unknown
from troll.common.settings import Settings, settings_of


@dataclass(frozen=True)
class Entry:
    """Registry entry of a rule.

    Attributes:
        name: the name used in configurations.
        function: the rule.
        summary: first line of its docstring.
        model: its settings, including those of a controller.
        aggregation: the aggregation that it requires, if any.
    """

    name: str
    function: Callable[..., Any]
    summary: str
    model: type[Settings]
    aggregation: str | None

    @property
    def settings(self) -> Mapping[str, FieldInfo]:
        """The settings by name."""
        return self.model.model_fields


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """Registered rules of one kind by name; a read-only mapping.

    Args:
        kind: name of the kind in error messages, such as "trust region".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, E] = {}

    def __getitem__(self, name: str) -> E:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        make: Callable[..., E],
        name: str,
        function: Callable[..., Any],
        *,
        defaults: Mapping[str, Any],
        controller: Callable[..., Any] | None = None,
        aggregation: str | None = None,
        **more: Any,
    ) -> None:
        """Register a function under a name.

        Args:
            make: class of the entry.
            name: the name used in configurations.
            function: the rule; its keyword-only parameters are its settings.
            defaults: defaults that override the function's.
            controller: its keyword-only parameters are settings, too.
            aggregation: the aggregation that the rule requires, one of `AGGREGATIONS`.
            **more: further attributes of the entry.

        Raises:
            UserError: a default for an unknown setting, or an invalid default; a setting without a default or
                with an unreadable annotation; an unknown aggregation.
        """
        controllers = () if controller is None else (controller,)
        model = settings_of(f"register({name!r})", function, *controllers, defaults=defaults)
        if controller is not None:
            more["controller"] = controller
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        aggregation = None if aggregation is None else check_aggregation(aggregation)
        model.completed(f"{self.kind} {name!r}", model.defaults())
        self._entries[name] = make(
            name=name, function=function, summary=summary, model=model, aggregation=aggregation, **more
        )

    def find(self, name: str) -> E:
        """Return the entry of a name.

        Raises:
            UserError: unknown name.
        """
        if name not in self:
            raise UserError(unknown(self.kind, name, self._entries))
        return self[name]

    def complete(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the given settings of a rule and fill in the defaults.

        Raises:
            UserError: unknown name or setting, or a value that the setting does not allow.
        """
        return self.find(name).model.completed(f"{self.kind} {name!r}", settings)

"""Rules by name: what is known of each, and one class for all registries."""

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
    """What is known of any registered rule.

    Attributes:
        name: the name users write.
        function: the rule.
        summary: first line of its docstring.
        model: its settings, those of a controller included.
        aggregation: the aggregation that belongs to it, if any.
    """

    name: str
    function: Callable[..., Any]
    summary: str
    model: type[Settings]
    aggregation: str | None

    @property
    def settings(self) -> Mapping[str, FieldInfo]:
        """Its settings by name."""
        return self.model.model_fields


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """Registered rules of one kind, by name; reading it is all that others may do.

    Args:
        kind: how messages call one of them, as in "trust region".
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
        """Makes a function known under a name.

        Args:
            make: the class of the entry.
            name: the name users write.
            function: its keyword-only parameters are its settings.
            defaults: defaults that differ from the function's.
            controller: its keyword-only parameters are settings too.
            aggregation: one of `AGGREGATIONS`, if one belongs to it.
            **more: what else the entry holds.

        Raises:
            UserError: a default of a setting that does not exist, or is not allowed; a setting without a
                default, or with an annotation that cannot be read; an unknown aggregation.
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
        """The entry of a name.

        Raises:
            UserError: unknown name.
        """
        if name not in self:
            raise UserError(f"{self.kind}: {unknown('name', name, self._entries)}")
        return self[name]

    def complete(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a name: those given, and defaults.

        Raises:
            UserError: unknown name or setting, or a value that the setting does not allow.
        """
        return self.find(name).model.completed(f"{self.kind} {name!r}", settings)

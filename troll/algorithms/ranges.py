"""Annotated number types for settings of rules and tasks, and for keys of files.

Further types can be written alike, as ``Annotated[float, Field(gt=1.0)]`` with pydantic's ``Field``. Infinity
is rejected unless ``allow_inf_nan=True``.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

_LARGEST = 2**31


def _number(value: Any) -> Any:
    # YAML parses yes and no as booleans, which Python accepts as numbers; users never mean that.
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError("expected a number below 2^31")
    return value


Count = Annotated[int, Field(gt=0), BeforeValidator(_number)]
"""1 or above."""
NonNegativeInt = Annotated[int, Field(ge=0), BeforeValidator(_number)]
"""0 or above."""
Positive = Annotated[float, Field(gt=0), BeforeValidator(_number)]
"""Above 0."""
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_number)]
"""0 or above."""
Limit = Annotated[float, Field(ge=0, allow_inf_nan=True), BeforeValidator(_number)]
"""0 or above; infinity for no limit."""
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
"""From 0 to 1."""

"""Types of numbers for annotations: of settings of rules and tasks, and of keys of files.

Others are written the same way, ``Annotated[float, Field(gt=1.0)]`` with pydantic's ``Field``. Infinity is
refused unless ``allow_inf_nan=True`` says otherwise.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

_LARGEST = 2**31


def _number(value: Any) -> Any:
    # YAML reads yes and no as flags, and Python takes a flag for a number; a user never means that.
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError("expected a number below 2^31")
    return value


Count = Annotated[int, Field(gt=0), BeforeValidator(_number)]
"""1 or above."""
Whole = Annotated[int, Field(ge=0), BeforeValidator(_number)]
"""0 or above."""
Positive = Annotated[float, Field(gt=0), BeforeValidator(_number)]
"""Above 0."""
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_number)]
"""0 or above."""
Limit = Annotated[float, Field(ge=0, allow_inf_nan=True), BeforeValidator(_number)]
"""0 or above; infinity for no limit."""
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
"""From 0 to 1."""

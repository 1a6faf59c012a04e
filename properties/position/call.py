"""The call of positions, and its answer. ``contract.py`` says how a callable of each contract is called."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import Raised, Target, raising
from ..engine.core.words import type_of


def answer(target: Target, *arguments: Any, **options: Any) -> tuple[Array, tuple[tuple[int, ...], str, str], Any]:
    """(the answer as a carrier, its shape, dtype and device, the answer itself). A list of numbers counts as a NumPy array. Raises Raised."""
    with raising({}):
        result = target.function(*arguments, **options)
        if isinstance(result, list | tuple) and target.framework.name == "numpy":
            result = np.array(result)
    if not target.framework.is_array(result):
        raise Raised(TypeError(f"returned {type_of(result)}, not an array of {target.framework.name}"))
    return target.framework.read(result), target.framework.describe(result), result

"""Functions of TensorFlow: called with NumPy's arrays, and answering in them, they are checked as NumPy's are, without gradients."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

LIBRARY, ON_IT = "tensorflow", ("tensorflow", "keras")


def answering_in_arrays(function: Any) -> Any:
    """A function whose module names TensorFlow, or Keras on it, as one of NumPy's arrays; any other thing itself."""
    library = sys.modules.get(LIBRARY)
    plain = getattr(function, "python_function", function)  # of a ``tf.function``
    if library is None or not isinstance(plain, FunctionType):
        return function
    named = {value.__name__.partition(".")[0] for value in plain.__globals__.values() if isinstance(value, ModuleType)}
    if not named & {*ON_IT} or {"torch", "jax", "mlx"} & named:
        return function

    @functools.wraps(plain)
    def attention(*arguments: Any, **options: Any) -> Any:
        given = [_tensor(each, library) for each in arguments]
        return _arrays(function(*given, **{name: _tensor(value, library) for name, value in options.items()}), library)

    return attention


def _tensor(value: Any, library: Any) -> Any:
    return library.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _arrays(answer: Any, library: Any) -> Any:
    """An answer with arrays for tensors, in tuples, lists and dictionaries, too."""
    if isinstance(answer, Mapping):
        return {name: _arrays(value, library) for name, value in answer.items()}
    if type(answer) in (tuple, list):
        return type(answer)(_arrays(value, library) for value in answer)
    return answer.numpy() if isinstance(answer, library.Tensor) else answer

"""What must be true of every attention, and the engine that tries to refute it.

Read the themes in the order of ``catalogue.THEMES``: softmax, values, masks, causality, symmetry, heads, scaling, chunks,
numbers, purity, layers. ``oracle``, ``arithmetic`` and ``bound`` say what a correct answer is, and how near one must be.

    from attncheck.properties import verify
    verify(attention)
"""

from typing import Any

__all__ = ["parametrize_with_properties", "verify"]


def __getattr__(name: str) -> Any:
    """The two doors for Python code, loaded when first used: pytest imports this package early."""
    if name in __all__:
        from .engine.doors import checks

        return getattr(checks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

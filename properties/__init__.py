"""What must be true of every attention, and the engine that tries to refute it.

A folder is a contract, a file in it a theme; ``catalogue.THEMES`` has them in the order of a text on attention. ``exact`` says what
a correct answer is, and how near one must be. ARCHITECTURE.md is the map.

    from attncheck.properties import verify
    verify(attention)
"""

from typing import Any

OWN = ("cases", "declare", "run_case")
__all__ = ["cases", "check_attention", "declare", "parametrize_with_properties", "run_case", "verify", "verify_pair"]


def __getattr__(name: str) -> Any:
    """The doors for Python code, loaded when first used: pytest imports this package early."""
    if name in __all__:
        from .engine.doors import checks, own

        return getattr(own if name in OWN else checks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The suspects of a run: attentions with a known mistake, for the reading of a failure."""

from __future__ import annotations

import importlib

from .reading import Suspect, suspect


def known_mistakes() -> list[Suspect]:
    """Those beside this package; none where they cannot be imported."""
    base = __package__.removesuffix("properties.engine.explain")  # "" in a clone, "attncheck." installed
    try:
        module = importlib.import_module(f"{base}impls.mutants")
        mutants, _ = module.load_all()
    except ImportError:
        return []
    return [suspect(f"mutants.{name}", m.mistake, m.contract, m.function, m.killed_by, module.forget) for name, m in mutants.items()]

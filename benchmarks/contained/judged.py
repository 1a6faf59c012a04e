"""What becomes of one file in a process of its own: a word and the reason."""

from __future__ import annotations

from pathlib import Path

from properties import catalogue
from properties.engine.contained import link
from properties.engine.core.target import CannotRun
from properties.engine.search.find_target import Builtins, containing, find_targets
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

PROPERTIES = (
    "output_is_inside_the_bound",
    "future_tokens_are_ignored",
    "rows_sum_to_one",
    "same_call_same_bits",
    "inputs_are_unchanged",
    "outputs_alias_no_input",
    "calls_between_change_nothing",
    "output_is_linear_in_values",
    "shifted_values_shift_the_output",
    "gradients_are_inside_the_bound",
    "memory_layout_changes_nothing",
)

OF_MODULES = (
    "module_equal_tokens_answer_as_one",
    "module_permuted_tokens_permute_rows",
    "module_batch_elements_are_independent",
    "module_the_same_call_gives_the_same_bits",
    "module_weights_are_unchanged",
    "module_nothing_is_remembered",
    "module_recording_changes_nothing",
    "module_is_as_near_to_its_twin_as_rounding_explains",
    "module_gradients_reach_every_parameter",
    "module_is_the_attention_of_its_projections",
)


def judged(path: Path, cases: int = 40, seconds: float | None = None, properties: tuple[str, ...] = PROPERTIES) -> tuple[str, str]:
    """("refuted" | "incomplete" | "cannot be run" | "nothing found", why) of the ``attention`` of a file."""
    link.WAITED.clear()
    with containing():
        try:
            (target,) = find_targets(f"{path}:attention", Builtins())
        except CannotRun as error:
            return "cannot be run", str(error)
        report = verify_target(target, catalogue.select(properties), Plan(examples=cases, shrink=False), seconds=seconds, first=True)
    if report.findings:
        return "refuted", f"{report.findings[0].prop.name}: {report.findings[0].violation.says}"
    if report.incomplete or not report.enough:
        return "incomplete", report.incomplete or "too little was tried"
    return "nothing found", f"{report.cases} cases"

"""What a gradient property costs, beside the property of the forward pass that it corresponds to: at most four times as much is the goal.

    python -m benchmarks.gradient_cost torch_sdpa.math

Seconds of CPU for 150 cases each, the target's own time included, for it runs a backward pass too; the least of three rounds.
"""

from __future__ import annotations

import sys
import time

from properties.catalogue import PROPERTIES
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.search import Plan, search

PAIRS = {
    "gradients_are_inside_the_bound": "output_is_inside_the_bound",
    "bias_gradient_is_inside_the_bound": "output_is_inside_the_bound",
    "hidden_keys_receive_no_gradient": "masked_garbage_changes_nothing",
    "gradients_stay_in_their_batch_element_and_head": "heads_are_independent",
    "grouped_gradients_are_summed": "grouped_heads_equal_repeated_heads",
    "value_gradient_reads_the_weights": "rows_sum_to_one",
    "gradients_add_up": "output_is_linear_in_values",
    "rows_without_keys_poison_no_gradient": "rows_without_keys_follow_the_convention",
}


def main(name: str) -> int:
    target = find_targets(name, Builtins())[0]

    def cost(prop: str) -> float:
        least = float("inf")
        for number in range(3):
            began = time.process_time()
            outcome = search(target, PROPERTIES[prop], Plan(round=number))
            assert outcome.cases == Plan().examples, outcome.not_exercised or outcome.finding
            least = min(least, time.process_time() - began)
        return least

    ratios = []
    for gradient, forward in PAIRS.items():
        one, other = cost(gradient), cost(forward)
        ratios.append(one / other)
        print(f"{gradient:<48}{one:7.2f} s   {forward:<42}{other:7.2f} s   {one / other:5.2f}")
    print(f"at most {max(ratios):.2f} times as much")
    return int(max(ratios) > 4)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["torch_sdpa.math"]))

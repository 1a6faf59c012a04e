"""Numbers: how far a correct attention may be from the exact answer follows from the numbers of the case.

|out − exact| ≤ E,  E from the unit roundoffs of the declared arithmetic, for any order of summation (``bound``)
"""

import numpy as np

from ..engine.cases.masks import MASKS
from ..engine.cases.regimes import CONTINUOUS, TELLING
from ..engine.core.supports import FEATURES
from .adequacy import is_adequate
from .common import live
from .contract import declare
from .precision import note_tighter
from .reread import disturb
from .tables import EDITS
from .trial import Trial

ALPHA = 1e-9  # probability that a correct attention exceeds the probabilistic bound on one case
NOT_ZERO = (None, None, 1.0, 0.5, -0.5, 16.0)  # of scales: a product times 0 may be left out, as BLAS does with alpha = 0
SHOWING = tuple(name for name in MASKS if name != "nothing")  # where all is hidden, zeros are right


@declare(
    "|out − exact| ≤ E",
    dtypes="all",
    edits=EDITS,
    zero_sizes=False,
    at_least={"keys": 2},
    values=TELLING,
    mask=(*SHOWING, *("random", "triangle", "band", "documents") * 2),
    features=FEATURES,
    scale=(None, None, None, 1.0, 0.5, 0.3, 2.0, -0.5, 16.0),
    models=4,
)
def output_is_inside_the_bound(t: Trial) -> None:
    """Every element of the output is as near to the exact answer as its arithmetic promises."""
    disturb(t)
    run = t.run()
    note_tighter(t, run)
    t.inside(run, run.bound, "row {row}, feature {column} is off")
    if t.case.values in CONTINUOUS and not t.case.edits and t.case.dtype in ("float64", "float32"):
        t.inside(run, run.likely(ALPHA), "row {row}, feature {column} is off by more than chance allows")
    t.notes.judged += 1  # a case that refutes has told them apart
    t.notes.adequate += is_adequate(t, run)


@declare(
    "|out − exact| ≤ E where even wrong answers may be right",
    dtypes="all",
    edits=EDITS,
    values=("normal", "identical_rows", "constant", "tiny", "signed_zeros", "near_ties"),
    scale=(None, 0.0, -0.0, 2.0**-20),
)
def degenerate_output_is_inside_the_bound(t: Trial) -> None:
    """The same where cases show little but code takes other paths: one key, no key, equal logits, equal or tiny values."""
    run = t.run()
    t.inside(run, run.bound, "row {row}, feature {column} is off")


def shows_nan(t: Trial, name: str) -> None:
    """One element of q, k or v is NaN: every row that sees it returns NaN."""
    tensor = getattr(t.inputs, name).copy()
    tensor.reshape(-1)[t.choice("index", tensor.size)] = np.nan
    run = t.run(t.inputs.but(**{name: tensor}))
    lost = np.isnan(run.exact.out) & ~np.isnan(run.out) & live(t)
    t.close(lost, False, np.zeros(lost.shape), f"row {{row}} sees a NaN in {name} and returns a number")


@declare("NaN in q_i ⇒ NaN in out_i", edge="NaN", values="normal", scale=NOT_ZERO, mask_kind=("bool", "minus_infinity"), zero_sizes=False)
def nan_query_is_not_hidden(t: Trial) -> None:
    """A NaN in a query shows in its row: an error upstream must not vanish."""
    shows_nan(t, "q")


@declare(
    "NaN in k_j ⇒ NaN in every row that sees j",
    edge="NaN",
    values="normal",
    scale=NOT_ZERO,
    mask_kind=("bool", "minus_infinity"),
    zero_sizes=False,
)
def nan_key_is_not_hidden(t: Trial) -> None:
    """A NaN in a key shows in every row that sees the key."""
    shows_nan(t, "k")


@declare("NaN in v_j ⇒ NaN in every row that sees j", edge="NaN", values="normal", mask_kind=("bool", "minus_infinity"), zero_sizes=False)
def nan_value_is_not_hidden(t: Trial) -> None:
    """A NaN in a value shows, in its feature, in every row that sees it."""
    shows_nan(t, "v")


@declare(
    "exact finite ⇒ out finite",
    zero_sizes=False,
    at_least={"keys": 2},
    mask=SHOWING,
    values=(*("large",) * 6, *("limits",) * 6, "negative", "negative", "rising", "uneven_rows", "offset"),
    dtypes="overflowing",
    magnitude=(0, 0, 0, 4, 5, 5, 5),
    scale=(None, None, 1.0, -0.5, 2.0**-20, 2.0**-20, 16.0),
)
def finite_results_do_not_overflow(t: Trial) -> None:
    """No intermediate overflows where the result is finite: the largest logit is subtracted before the exponential."""
    run = t.run()
    broken = ~np.isfinite(run.out) & np.isfinite(run.bound) & np.isfinite(run.exact.out)
    t.close(broken, False, np.zeros(broken.shape), "row {row} is not finite, though the exact result is")

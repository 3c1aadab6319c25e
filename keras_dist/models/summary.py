"""The table of `model.summary()`."""

from __future__ import annotations

from rich.table import Table

from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import add_totals, layout_table


def summary_table(plan: LayoutPlan, state_plan: LayoutPlan) -> Table:
    """Every variable with layout and bytes per device, then the totals of the kinds.

    Args:
        plan: plan of the variables.
        state_plan: plan of the whole training state.
    """
    table = layout_table(plan.rows, f"Model on mesh {plan.mesh.describe()}")
    groups = {
        "parameters": [row for row in plan.rows if row.role == "parameter"],
        "other variables": [row for row in plan.rows if row.role != "parameter"],
        "optimizer slots": [row for row in state_plan.rows if row.role == "slot"],
        "total": list(state_plan.rows),
    }
    add_totals(table, {label: rows for label, rows in groups.items() if rows})
    return table

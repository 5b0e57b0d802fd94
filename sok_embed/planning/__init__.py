"""Plans on which workers the rows of many tables lie, and computes the costs.

Neither TensorFlow nor a worker is needed to make one.
"""

from __future__ import annotations

from sok_embed.planning.hardware import Hardware
from sok_embed.planning.planner import plan
from sok_embed.planning.sharding_plan import Plan
from sok_embed.planning.tables import PlannedFeature, PlannedTable
from sok_embed.planning.usage import Usage, measured

__all__ = ["Hardware", "Plan", "PlannedFeature", "PlannedTable", "Usage", "measured", "plan"]

"""Defines the policies by which `Variable.restrict` chooses the rows to remove."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed import tf_ops
from sok_embed.arguments import check_integer, shown

__all__ = ["FrequencyRestrictPolicy", "RestrictPolicy", "TimestampRestrictPolicy"]


class RestrictPolicy:
    """Base of the two policies. A table counts updates and notes times by itself.

    Args:
        var: The `Variable` to be restricted.
    """

    def __init__(self, var: Any) -> None:
        self.var = var

    def rank(self, metadata: tf_ops.Metadata) -> npt.NDArray[np.int64]:
        """Returns a number for each row, int64 `[n]`; the least numbers are removed first."""
        raise NotImplementedError

    def apply_restriction(self, num_reserved: int, **kwargs: Any) -> int:
        """Removes rows with their slots, so that `num_reserved` stay. To be called eagerly.

        Of equal rows, the rows with the least keys are removed first.

        Args:
            num_reserved: The number of rows of this worker that stay.
            **kwargs: `trigger`, the number of rows above which rows are removed; default:
                `num_reserved`.

        Returns:
            The number of rows that were removed.

        Raises:
            ValueError: For numbers that are not integers of at least 0, and other arguments.
        """
        trigger = kwargs.pop("trigger", num_reserved)
        if kwargs:
            raise ValueError(f"Expected trigger= alone. Received: {', '.join(kwargs)}.")
        num_reserved = check_integer("num_reserved", num_reserved, 0)
        table = self.var.table
        if table.size() <= check_integer("trigger", trigger, 0):
            return 0
        keys = np.sort(table.export()[0])
        order = np.argsort(self.rank(table.metadata(keys)), kind="stable")
        return int(table.remove(keys[order[: max(len(keys) - num_reserved, 0)]]))


class FrequencyRestrictPolicy(RestrictPolicy):
    """Removes the rows that were updated least often."""

    def rank(self, metadata: tf_ops.Metadata) -> npt.NDArray[np.int64]:
        """Returns how often each row was updated."""
        return np.asarray(metadata.update_nums)


class TimestampRestrictPolicy(RestrictPolicy):
    """Removes the rows whose last update was longest ago."""

    def rank(self, metadata: tf_ops.Metadata) -> npt.NDArray[np.int64]:
        """Returns the time of each row's last update."""
        return np.asarray(metadata.update_times)


POLICIES = {cls.__name__: cls for cls in (FrequencyRestrictPolicy, TimestampRestrictPolicy)}


def policy_of(policy: Any) -> type[RestrictPolicy] | None:
    """Returns the class of a policy, from the class itself or from its name in a config.

    Raises:
        ValueError: For another class, since tables do not keep counts for it.
    """
    found = POLICIES.get(policy, policy) if isinstance(policy, str) else policy
    if found is None or (isinstance(found, type) and found in POLICIES.values()):
        return found
    raise ValueError(
        f"Expected restrict_policy to be {' or '.join(POLICIES)}. Received: {shown(policy)}. "
        "Choose rows by table.metadata(keys), and remove them by table.remove(keys)."
    )

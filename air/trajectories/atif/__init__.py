"""Writes and checks documents of ATIF-v1.7, the Agent Trajectory Interchange Format of the Harbor project.

Follows RFC 0001, "Agent Trajectory Interchange Format (ATIF) Specification", changelog v1.7, April 2026.
"""

from air.trajectories.atif.rules import RULES, problems
from air.trajectories.atif.writing import to_atif

__all__ = ["RULES", "problems", "to_atif"]

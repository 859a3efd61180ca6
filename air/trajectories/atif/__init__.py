"""Converts trajectories (air's records of episodes) to ATIF, the Agent Trajectory Interchange Format of the
benchmark project Harbor, checks ATIF documents, and reads from them what an agent typed and ran.

The implementation follows RFC 0001, "Agent Trajectory Interchange Format (ATIF) Specification", up to v1.8,
and the models of the package harbor 0.25.
"""

from air.trajectories.atif.rules import NEWEST, RULES, VERSIONS, problems
from air.trajectories.atif.writing import to_atif

__all__ = ["NEWEST", "RULES", "VERSIONS", "problems", "to_atif"]

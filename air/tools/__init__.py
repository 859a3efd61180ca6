"""Tools: typed functions that the model can call in an episode. A world (the environment in which the agent
acts) offers them. This package defines what a tool is, and contains the tools that are shipped with air."""

from __future__ import annotations

from air.tools.base import Reply, Tool, ToolContext, ToolError, ToolResult, finish, tool
from air.tools.episode_tools import OpenTools
from air.tools.load import TOOLS, ToolSettings, load
from air.tools.resource_pool import ResourcePool
from air.tools.tool_set import ToolSet

__all__ = [
    "TOOLS",
    "OpenTools",
    "Reply",
    "ResourcePool",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "ToolSet",
    "ToolSettings",
    "finish",
    "load",
    "tool",
]

"""Converts the result of a tool of the Model Context Protocol (MCP) into the text that the model sees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_types import CallToolResult


def text_of(result: CallToolResult) -> str:
    """Returns a tool's result as text. An image, a sound or other binary data is replaced by a line that
    describes it. Structured content is used, as JSON, only if the result has no other content."""
    parts = [_block(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return text.encode("utf-8", "replace").decode() or "[no content]"


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type} ({block.mime_type:.80}, {_size(block.data)}): it cannot be shown]"
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    resource = block.resource
    if hasattr(resource, "text"):
        return str(resource.text)
    return f"[resource {resource.uri} ({_size(resource.blob)}): it cannot be shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('=')} bytes"

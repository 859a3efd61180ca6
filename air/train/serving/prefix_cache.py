"""Keeps the keys and values of finished prompts and replies, so that prompts with the same prefix reuse them.

The sequences form a prefix tree (a token tree). A node has some tokens with their keys and values, and
continues its parent's sequence, so a shared prefix is stored once. When the tree exceeds its limit, the least
recently used leaf is removed first. Requests may continue to read the tensors of a removed node.

Keys and values depend on the weights, so the owner clears the cache before the weights change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from air.train.devices.memory import available

Block = list[Tensor]
"""Keys and values of consecutive tokens: the keys of all layers, then the values of all layers.
Each tensor is [kv_heads, tokens, head_dim]."""


@dataclass(frozen=True, eq=False)
class Part:
    """The keys and values of consecutive tokens: the first `count` tokens of `block`, which never changes."""

    block: Block
    count: int

    @property
    def key(self) -> tuple[int, int]:
        """A key that is equal for two parts if they are the same part, as long as both are in use."""
        return id(self.block), self.count


def default_limit(device: torch.device) -> int:
    """Returns the default size limit in bytes: an eighth of the device's memory that is available now."""
    return available(device) // 8


@dataclass(eq=False)
class _Node:
    tokens: list[int]
    block: Block
    parent: _Node | None = None
    children: dict[int, _Node] = field(default_factory=dict)
    """The nodes that continue this node, by their first token."""

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.block)


class PrefixCache:
    """A prefix tree of token sequences with their keys and values, of at most `limit` bytes (0: nothing)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        """The present size of all keys and values."""
        self.peak_bytes = 0
        """The largest value of `bytes` since the cache was made."""
        self._root = _Node([], [])
        # Nodes from the least to the most recently used. Whenever a child is used, its parent counts as used
        # just after it, so the first node is always a leaf.
        self._order: OrderedDict[_Node, None] = OrderedDict()

    def match(self, tokens: Sequence[int]) -> int:
        """Returns the length of the longest prefix of `tokens` whose keys and values are stored."""
        return sum(count for _, count in self._path(tokens))

    def read(self, tokens: Sequence[int]) -> list[Part]:
        """Returns the stored keys and values of the longest stored prefix of `tokens`, as consecutive parts,
        without a copy. They stay valid until the weights change."""
        path = self._path(tokens)
        self._touch([node for node, _ in path])
        return [Part(node.block, count) for node, count in path]

    def insert(self, tokens: Sequence[int], block: Callable[[int, int], Block]) -> None:
        """Stores copies of the keys and values of those `tokens` that are not stored yet. `block(start,
        stop)` returns the keys and values of `tokens[start:stop]`. Tokens beyond the limit are left out."""
        if self.limit <= 0:
            return
        path = self._path(tokens)
        start = sum(count for _, count in path)
        parent = self._root
        if path:
            node, count = path[-1]
            parent = node if count == len(node.tokens) else self._split(node, count)
        nodes = [node for node, _ in path[:-1]] + ([parent] if path else [])
        if start < len(tokens):
            one = sum(tensor.nbytes for tensor in block(start, start + 1))
            space = self.limit - sum(node.bytes for node in nodes)
            stop = min(len(tokens), start + space // one)
            if start < stop:
                copies = [tensor.clone() for tensor in block(start, stop)]
                nodes.append(self._add(list(tokens[start:stop]), copies, parent))
        self._touch(nodes)
        self._evict()

    def clear(self) -> None:
        """Removes all nodes and frees their memory at once. Links between nodes are cut, because Python frees
        objects that refer to each other only later."""
        for node in self._order:
            node.parent = None
            node.children.clear()
        self._root = _Node([], [])
        self._order.clear()
        self.bytes = 0

    def _path(self, tokens: Sequence[int]) -> list[tuple[_Node, int]]:
        """Returns the nodes that hold the longest stored prefix of `tokens`, each with the number of its
        tokens that are used. All nodes but the last are used completely."""
        path: list[tuple[_Node, int]] = []
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(tokens[at])) is not None:
            count = _common(child.tokens, tokens[at : at + len(child.tokens)])
            path.append((child, count))
            if count < len(child.tokens):
                break
            node, at = child, at + count
        return path

    def _add(self, tokens: list[int], block: Block, parent: _Node) -> _Node:
        node = _Node(tokens, block, parent)
        parent.children[tokens[0]] = node
        self._order[node] = None
        self.bytes += node.bytes
        return node

    def _split(self, node: _Node, count: int) -> _Node:
        """Splits a node after `count` tokens. Returns the new node, which has the first `count` tokens."""
        parent, tokens, block = node.parent, node.tokens, node.block
        assert parent is not None
        # Copies, because a view would keep the other part's memory alive after that part is removed.
        first = [tensor[:, :count].clone() for tensor in block]
        node.tokens, node.block = tokens[count:], [tensor[:, count:].clone() for tensor in block]
        self.bytes -= sum(tensor.nbytes for tensor in first)
        upper = self._add(tokens[:count], first, parent)
        upper.children[tokens[count]] = node
        node.parent = upper
        return upper

    def _touch(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._order.move_to_end(node)

    def _evict(self) -> None:
        while self.bytes > self.limit:
            node, _ = self._order.popitem(last=False)
            assert node.parent is not None
            assert not node.children
            del node.parent.children[node.tokens[0]]
            self.bytes -= node.bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the longest prefix that both sequences share."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(n for n in range(shorter) if first[n] != second[n])

"""A cache of attention keys and values, from which a later prompt with the same beginning (prefix) as an
earlier prompt or reply can continue.

The cached token sequences form a prefix tree. A node contains consecutive tokens with their keys and values,
and continues the sequence of its parent, so a common prefix is stored once. When the tree exceeds its size
limit, the least recently used leaf is removed first. Running requests may continue to read the tensors of a
removed node.

Keys and values depend on the weights, so the cache must be cleared before the weights change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from air.train.devices.memory import available

Block = list[Tensor]
"""The keys and values of consecutive tokens: a list of the keys of each layer, then the values of each layer.
Each tensor is [kv_heads, tokens, head_dim]."""


@dataclass(frozen=True, eq=False)
class Part:
    """The keys and values of the first `count` tokens of `block`: a piece of a stored prefix, which running
    requests read without copying it. The tensors of `block` never change."""

    block: Block
    count: int

    @property
    def key(self) -> tuple[int, int]:
        """A value with which two parts can be compared without reading their tensors. The keys are equal if
        and only if both parts have the same count and the same block (the same Python object). Only parts
        that exist at the same time may be compared."""
        return id(self.block), self.count


def default_limit(device: torch.device) -> int:
    """Returns the default size limit of a prefix cache in bytes: an eighth of the free memory of the
    device."""
    return available(device) // 8


@dataclass(eq=False)
class _Node:
    tokens: list[int]
    block: Block
    parent: _Node | None = None
    children: dict[int, _Node] = field(default_factory=dict)
    """The nodes that continue the sequence of this node. The key is the first token id of the child."""

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.block)


class PrefixCache:
    """A prefix tree of token sequences with their attention keys and values, which together take at most
    `limit` bytes. If `limit` is 0, nothing is stored."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        """The present size of all cached keys and values, in bytes."""
        self.peak_bytes = 0
        """The largest size so far of all cached keys and values, in bytes."""
        self._root = _Node([], [])
        # Nodes from the least to the most recently used. Whenever a child is used, its parent counts as used
        # just after it, so the first node is always a leaf.
        self._order: OrderedDict[_Node, None] = OrderedDict()

    def match(self, tokens: Sequence[int]) -> int:
        """Returns the length of the longest prefix of `tokens` whose keys and values are stored."""
        return sum(count for _, count in self._path(tokens))

    def read(self, tokens: Sequence[int]) -> list[Part]:
        """Returns the keys and values of the longest stored prefix of `tokens`, as consecutive parts, without
        copying them. The parts remain usable until the weights change, even if the cache removes their
        nodes."""
        path = self._path(tokens)
        self._touch([node for node, _ in path])
        return [Part(node.block, count) for node, count in path]

    def insert(self, tokens: Sequence[int], block: Callable[[int, int], Block]) -> None:
        """Stores copies of the keys and values of those `tokens` that are not stored yet. The function
        `block(start, stop)` must return the keys and values of `tokens[start:stop]`. If the size limit leaves
        too little room, the last tokens are not stored."""
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
        """Removes all nodes and frees their memory at once. For this, removes the references between nodes,
        because Python frees objects in reference cycles only later."""
        for node in self._order:
            node.parent = None
            node.children.clear()
        self._root = _Node([], [])
        self._order.clear()
        self.bytes = 0

    def _path(self, tokens: Sequence[int]) -> list[tuple[_Node, int]]:
        """Returns the nodes that contain the longest stored prefix of `tokens`, in order. Each is paired with
        the number of its tokens that belong to this prefix: all of its tokens, except perhaps in the last
        node."""
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
        """Splits `node` in two after `count` tokens, so that another sequence can branch off there. Returns a
        new node with the first `count` tokens, which becomes the parent of `node`; `node` has the remaining
        tokens."""
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
    """Returns the length of the longest common prefix of two token sequences."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(n for n in range(shorter) if first[n] != second[n])

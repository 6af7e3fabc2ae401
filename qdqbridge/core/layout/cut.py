"""The minimum cut of a network by Dinic's algorithm (Soviet Math. Dokl. 11, 1970)."""

from __future__ import annotations

SOURCE, SINK = 0, 1
INFINITE = 1 << 60


class Network:
    """Numbered nodes with directed edges of integer capacity; 0 is the source, 1 the sink."""

    def __init__(self) -> None:
        self._leaving: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """Adds a node; returns its number."""
        self._leaving.append([])
        return len(self._leaving) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._leaving[start].append(len(self._to))
            self._to.append(end)
            self._room.append(room)

    def source_side(self) -> list[bool]:
        """Returns for every node whether the smallest minimum cut leaves it with the source."""
        while True:
            level = self._levels()
            if level[SINK] < 0:
                return [depth >= 0 for depth in level]
            self._fill(level)

    def _levels(self) -> list[int]:
        """Returns the distance from the source over edges with room; -1 out of reach."""
        level = [-1] * len(self._leaving)
        level[SOURCE] = 0
        queue = [SOURCE]
        for node in queue:
            for edge in self._leaving[node]:
                if self._room[edge] and level[self._to[edge]] < 0:
                    level[self._to[edge]] = level[node] + 1
                    queue.append(self._to[edge])
        return level

    def _fill(self, level: list[int]) -> None:
        """Sends flow along shortest paths until each of them has a full edge."""
        tried = [0] * len(self._leaving)
        path: list[int] = []
        at = SOURCE
        while True:
            if at == SINK:
                path = self._push(path)
                at = self._to[path[-1]] if path else SOURCE
                continue
            edge = self._next(at, level, tried)
            if edge is not None:
                path.append(edge)
                at = self._to[edge]
            elif path:
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
            else:
                return

    def _next(self, at: int, level: list[int], tried: list[int]) -> int | None:
        edges = self._leaving[at]
        while tried[at] < len(edges):
            edge = edges[tried[at]]
            if self._room[edge] and level[self._to[edge]] == level[at] + 1:
                return edge
            tried[at] += 1
        return None

    def _push(self, path: list[int]) -> list[int]:
        """Sends what fits; returns the path up to its first edge that is full now."""
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return path[: next(i for i, edge in enumerate(path) if not self._room[edge])]

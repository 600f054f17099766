"""Another order of layers, in which less may be in use at a time.

onnxruntime, which folds constants, leaves nodes in an order of its own: of two branches the short
one may come first, and its result waits for the long one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence

from edgepack.kernels.layer import Layer
from edgepack.kernels.value import Value


def as_late_as_possible(layers: Sequence[Layer], outputs: Collection[Value]) -> list[Layer]:
    """Each layer just before the first that reads it; of several the one that fewest layers in a
    row lead to comes last. What no layer reads, and is none of the `outputs`, comes early: a layer
    that reads what it is made of instead needs it after all where no rule takes that layer."""
    makers = {value: index for index, layer in enumerate(layers) for value in layer.results}
    read = [
        [makers[value] for value in (*layer.inputs, *layer.operands) if value in makers]
        for layer in layers
    ]
    depths: list[int] = []
    for made in read:
        depths.append(1 + max((depths[index] for index in made), default=0))
    waiting = Counter(index for made in read for index in set(made))

    def rank(index: int) -> tuple[bool, int, int]:
        is_hidden = index not in is_read and not set(outputs) & set(layers[index].results)
        return is_hidden, depths[index], -index

    is_read = set(waiting)
    found = []
    # From the end: what nothing else waits for, of those that wait the one of least depth.
    ready = [rank(i) for i in range(len(layers)) if i not in is_read]
    heapq.heapify(ready)
    while ready:
        *_, number = heapq.heappop(ready)
        found.append(layers[-number])
        for index in set(read[-number]):
            waiting[index] -= 1
            if not waiting[index]:
                heapq.heappush(ready, rank(index))
    return found[::-1]

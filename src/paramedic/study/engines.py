"""Where labelling runs: in this process, in several of this machine, or on Ray. Same code, same result, same order."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from paramedic.study.label import Recipe, label_some, labeller
from paramedic.study.needed import needed
from paramedic.study.store import Post, Predicted

ENGINES = ("local", "ray")
Chunks = Iterable[list[Post]]
_AHEAD = 2
"""Chunks a worker has waiting: memory stays bounded, however many posts there are."""


def labelled(chunks: Chunks, recipe: Recipe, engine: str = "local", workers: int = 1) -> Iterator[list[Predicted]]:
    if engine == "ray":
        return _on_ray(chunks, recipe, workers)
    if workers == 1:
        return (label_some(chunk, recipe) for chunk in chunks)
    return _in_processes(chunks, recipe, workers)


def _in_order(
    chunks: Chunks, start: Callable[[list[Post]], Any], wait: Callable[[Any], Any], most: int
) -> Iterator[Any]:
    waiting: deque[Any] = deque()
    for chunk in chunks:
        waiting.append(start(chunk))
        if len(waiting) >= most:
            yield wait(waiting.popleft())
    while waiting:
        yield wait(waiting.popleft())


_recipe: Recipe = Recipe()


def _begin(recipe: Recipe) -> None:
    global _recipe  # noqa: PLW0603
    _recipe = recipe
    labeller(recipe)


def _with_recipe(posts: list[Post]) -> list[Predicted]:
    return label_some(posts, _recipe)


def _in_processes(chunks: Chunks, recipe: Recipe, workers: int) -> Iterator[list[Predicted]]:
    """Each process learns once, when it starts."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (recipe,)) as pool:

        def start(chunk: list[Post]) -> Future[list[Predicted]]:
            return pool.submit(_with_recipe, chunk)

        yield from _in_order(chunks, start, lambda future: future.result(), _AHEAD * workers)


def _on_ray(chunks: Chunks, recipe: Recipe, workers: int) -> Iterator[list[Predicted]]:
    """On the cluster that `RAY_ADDRESS` names, or on one started here. Tasks are retried by Ray when a node is lost."""
    ray = needed("ray", "ray")
    started = not ray.is_initialized()
    if started:
        ray.init(
            num_cpus=None if os.environ.get("RAY_ADDRESS") else workers, include_dashboard=False, log_to_driver=False
        )
    try:
        task = ray.remote(num_cpus=1)(label_some)
        shared = ray.put(recipe)
        yield from _in_order(chunks, lambda chunk: task.remote(chunk, shared), ray.get, _AHEAD * workers)
    finally:
        if started:
            ray.shutdown()

"""A prepared build goes in; the engine that makes its calls, and what its workers must be told, come out."""

from __future__ import annotations

from msgspec.structs import replace

from cleanfeed.build.engine import Engine, LocalEngine
from cleanfeed.build.request import Prepared
from cleanfeed.build.tasks import Context, is_small
from cleanfeed.curriculum.durable import write_bytes

IN_MEMORY = "memory://"


def engine_for(prepared: Prepared) -> Engine:
    """Return the engine of a build; what lies in the memory of this process is worked on in this process."""
    request = prepared.request
    places = [str(prepared.context.out), *(file.path for file in prepared.plan.files)]
    if any(place.startswith(IN_MEMORY) for place in places):
        return LocalEngine(1, here=True)
    if request.engine == "ray":
        from cleanfeed.build.ray_engine import RayEngine

        return RayEngine(request.workers)
    workers = 1 if is_small(prepared.plan.pieces) else request.workers
    return LocalEngine(workers, here=not (request.isolated or request.workers > 1))


def for_workers(prepared: Prepared) -> Context:
    """Return what the workers of a build must know; those of other machines find the tokenizer in OUT."""
    context = prepared.context
    encoder = context.encoder()
    if encoder is None or prepared.request.engine != "ray":
        return context
    shared = context.work / "tokenizer.json"
    write_bytes(shared, encoder.raw)
    return replace(context, tokenizer=shared)

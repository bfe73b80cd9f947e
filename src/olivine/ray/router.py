"""The router of requests to replicas, in the words of Ray Serve's interface for it."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from olivine.ray.prefix import PrefixIndex, preferred


class PrefixRouter(RequestRouter):
    """Prefers the replica that has most of a prompt's prefix cached, as far as this router knows: it learns
    from what it sent where. Otherwise, and where that one is too busy, the idler of two (power of two
    choices)."""

    # Of Ray's 0.1: a replica whose cores are busy answers later than that, and is not to be passed over.
    queue_len_response_deadline_s = 1.0

    def initialize_state(self, **kwargs: Any) -> None:
        self._index: PrefixIndex[ReplicaID] = PrefixIndex()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas in the order in which they are tried: those of a list are equally good."""
        request = pending_request.args[0] if pending_request and pending_request.args else None
        avoid = getattr(request, "avoid", ())
        others = [each for each in candidate_replicas if each.replica_id.unique_id not in avoid]
        candidates = others or candidate_replicas
        some = random.sample(candidates, min(2, len(candidates)))
        if pending_request is None:
            return [some]
        pending_request.routing_context.should_backoff = True  # where all are full
        by_id = {each.replica_id: each for each in candidates}
        if wanted := getattr(request, "replica", None):
            return [[each for each in candidate_replicas if each.replica_id.unique_id == wanted] or some]
        queues = self.replica_queue_len_cache
        loads = {each: float(queues.get(each) or 0) for each in by_id}
        best = preferred(self._index.depths(getattr(request, "prefixes", ())), loads)
        return [some] if best is None else [[by_id[best]], some]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        if pending_request.args:
            self._index.learn(getattr(pending_request.args[0], "prefixes", ()), replica_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._index.keep(set(self.curr_replicas))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        before = set(self.curr_replicas)
        super().update_replicas(replicas)
        if before - set(self.curr_replicas):
            self._index.keep(set(self.curr_replicas))

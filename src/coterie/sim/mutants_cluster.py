"""The mutations of the cluster: for its properties a line without which they do not hold."""

from __future__ import annotations

from coterie.sim.mutation import Mutation

CLUSTER_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="cluster-one-disk-suffices",
        profile="cluster",
        property="B1",
        what="a confirm waits for one disk, and not for a majority of them",
        module="coterie.cluster.disks",
        old="            core.pending.on_disk = max(core.pending.on_disk, found[len(found) // 2])",
        new="            core.pending.on_disk = max(core.pending.on_disk, found[0])",
        seed=77,
    ),
    Mutation(
        name="cluster-lost-and-not-flagged",
        profile="cluster",
        property="B4",
        what="what a lost broker's clients had seen comes again as if nobody had",
        module="coterie.cluster.message_handler",
        old="                queue.apply_release(entries, redelivered=True)",
        new="                queue.apply_release(entries, redelivered=False)",
        seed=13,
    ),
    Mutation(
        name="cluster-origin-enqueues-more",
        profile="cluster",
        property="B6",
        what="a broker leaves out the last message of a batch that another one has published",
        module="coterie.cluster.message_handler",
        old="                self._enqueue([(queue, messages)], None)",
        new="                self._enqueue([(queue, messages[:-1] or messages)], None)",
    ),
    Mutation(
        name="cluster-counts-at-home-only",
        profile="cluster",
        property="B7",
        what="what a consumer has settled makes room for it on its own broker only",
        module="coterie.cluster.consumers",
        old='        """It has room for so many more."""\n',
        new='        """It has room for so many more."""\n        if self.allotted is None:\n            return\n',
    ),
    Mutation(
        name="cluster-binds-at-home-only",
        profile="cluster",
        property="B8",
        what="a binding is made on the broker that was asked for it, and nowhere else",
        module="coterie.cluster.message_handler",
        old="            return change.apply(vhost)",
        new='            return change.apply(vhost) if asked or type(change).__name__ != "Bind" else None',
    ),
    Mutation(
        name="cluster-update-lacks-one",
        profile="cluster",
        property="B10",
        what="an update lacks the last message of every queue",
        module="coterie.cluster.snapshot",
        old="    entries = [(queue.incarnation, [*queue.entries.values()]) for queue in queues]",
        new="    entries = [(queue.incarnation, [*queue.entries.values()][:-1]) for queue in queues]",
    ),
    Mutation(
        name="cluster-bodies-come-altered",
        profile="cluster",
        property="B10",
        what="a broker that catches up is given other bodies than those it asks for",
        module="coterie.cluster.filling",
        old="                parts += (_BODY.pack(number, position, entry.size), entry.message.body)",
        new="                parts += (_BODY.pack(number, position, entry.size), entry.message.body[::-1])",
    ),
    Mutation(
        name="cluster-speaks-when-stranded",
        profile="cluster",
        property="B13",
        what="a broker without a majority goes on delivering and answering",
        module="coterie.cluster.core",
        old="        return self.state is State.SERVING and self.lease.valid()",
        new="        return True",
        seed=120,
    ),
    Mutation(
        name="cluster-origin-turns-batches-round",
        profile="cluster",
        property="B14",
        what="where it was published, a batch is enqueued from its end",
        module="coterie.cluster.message_handler",
        old="            self._enqueue([*asked.routed.items()], asked)\n        else:\n            number,",
        new="            self._enqueue([(q, m[::-1]) for q, m in asked.routed.items()], asked)\n"
        "        else:\n            number,",
        seed=5,
    ),
)

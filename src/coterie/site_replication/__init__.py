"""Asynchronous replication of queues to another broker or cluster, over AMQP: links, and the queues that follow."""

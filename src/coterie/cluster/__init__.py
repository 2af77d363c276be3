"""The cluster: several brokers that are one, by replicating queue events in total order (docs/cluster.md)."""

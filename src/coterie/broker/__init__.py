"""The broker: exchanges, queues, consumers and the store. It knows nothing of clusters, connections or sockets."""

"""The front door for AMQP 0-9-1 clients: frames, methods, connections and channels, all without I/O of their own."""

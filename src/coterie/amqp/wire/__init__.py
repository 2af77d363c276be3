"""The codec of AMQP 0-9-1: frames, methods, field tables, properties and the protocol's numbers.

Pure functions over bytes. It knows nothing of brokers; the broker keeps messages in these forms.
"""

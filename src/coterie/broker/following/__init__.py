"""Queues that follow those of another broker or cluster: this side of a replication.

A link (`coterie.site_replication`) publishes steps to an exchange of the type `x-replication`; here they are read,
checked against the permissions of their user, and taken.
"""

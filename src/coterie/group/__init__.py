"""The group: processes that see the same views and deliver the same messages, through a stack of protocols."""

"""The demonstration: a group with agreed views and total order, shown with real processes in a few seconds."""

"""The demonstration: what the floor that exists can do, shown with real processes in a few seconds."""

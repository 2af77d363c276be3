"""GMS: agreed views. gms.py tells what it promises."""

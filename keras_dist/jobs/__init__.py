"""The processes of a job: how they join, watch each other, and do things together."""

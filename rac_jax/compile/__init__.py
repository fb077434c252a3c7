"""Compile the programs of a run for devices that are not there: their memory, arithmetic, collectives and time."""

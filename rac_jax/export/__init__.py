"""Copying a run to a folder that answers on any machine, with a model card."""

"""Answers of a trained run for image files."""

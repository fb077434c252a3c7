"""Measurements of single parts: python -m rac_jax.bench NAME"""

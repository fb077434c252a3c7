"""Benchmarks: python -m rac_jax.bench NAME"""

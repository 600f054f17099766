"""Tuning on a device: a few ways to make each kernel, timed there, and kept where they win.

session   what is tried, in which order, and what is kept of it
rounds    one round: variants of a network compiled, sent, and run in turns
"""

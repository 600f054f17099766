"""Cores that issue in order: what they do in a cycle, and which order of instructions suits them.

cores         their numbers, each with its document
instructions  what an instruction reads, writes and needs
play          when each instruction of a run issues
order         instructions put in an order that takes few cycles
"""

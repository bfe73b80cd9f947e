"""How fast a model runs, compared with the machine's limits and with llama.cpp: see `measure.py`.

Nothing is imported here: the child processes import this package, and their start-up is measured.
"""

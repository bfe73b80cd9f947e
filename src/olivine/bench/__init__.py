"""How fast a model runs here, beside what the machine allows and beside llama.cpp: see `measure.py`.

Nothing is imported here: the children pass through this file, and their start is measured.
"""

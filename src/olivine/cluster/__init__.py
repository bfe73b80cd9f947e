"""One model in several processes: the ranks of a divided plan, and the program that drives them."""

from olivine.cluster.group import Group, Parallel, compile_group

__all__ = ["Group", "Parallel", "compile_group"]

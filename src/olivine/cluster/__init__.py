"""One model in several processes: the ranks of a divided plan, and the program that drives them."""

from olivine.cluster.group import Group, Parallel, compile_group
from olivine.cluster.rendezvous import Address, Meeting

__all__ = ["Address", "Group", "Meeting", "Parallel", "compile_group"]

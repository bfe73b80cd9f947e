"""Models by name: which there are, where they lie on this machine, and how they get there.

`find` is the one function that turns what a user calls a model into a path. Nothing heavy is imported for it;
huggingface_hub is imported when something is downloaded.
"""

from olivine.hub.find import find

__all__ = ["find"]

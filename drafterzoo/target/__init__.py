"""The frozen model: loading, taps, tree forwards and the K/V cache."""

from drafterzoo.target.cache import TargetCache
from drafterzoo.target.loading import load_target
from drafterzoo.target.target import Reading, Target

__all__ = ["Reading", "Target", "TargetCache", "load_target"]

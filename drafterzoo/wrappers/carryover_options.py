"""What the options of `carryover` mean, one line each, for people who set them.

Words only: the values, their types and what is refused stand in carryover.py.
"""

from __future__ import annotations

MEANINGS = {
    "carry": "rejected rows kept for one round, at most; 0: none, which is the bare drafter; none: a block's proposals",
    "keep": "which of a tree's: 'deepest': its deepest rejected branch first; 'likeliest': by path score",
    "positions": "where a row's keys stand: at the 'verified' position, or at the 'next' one",
    "embedding": "what the learned vector is added to: the 'taps', before they are fused, or the fused 'context'",
    "fresh": "in training, the share of anchors without carried rows",
}

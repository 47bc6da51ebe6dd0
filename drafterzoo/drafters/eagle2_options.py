"""What the options of `eagle2` and `hass` mean, one line each, for people who set them.

Words only: the values, their types and what is refused stand in eagle2_body.py.
"""

from __future__ import annotations

from drafterzoo.drafters.eagle3_options import MEANINGS as OF_EAGLE3

_SHARED = (
    "vocab_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "num_layers", "rms_norm_eps",
    "rope_theta", "rope_scaling", "embedding", "packed_dtype", "coupling",
)  # fmt: skip

MEANINGS = {
    **{name: OF_EAGLE3[name] for name in _SHARED},
    "tap": "boundary of the target that is read: the one after its final norm",
    "hidden_size": "width of the drafter, which is the target's",
    "draft_vocab_size": "tokens that can be proposed: all, or the most frequent in the training answers",
    "fc_bias": "a bias in the projection of embedding and feature",
    "qkv_bias": "a bias in the projections to queries, keys and values",
}

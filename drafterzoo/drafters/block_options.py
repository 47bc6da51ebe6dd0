"""What the options of `dflash`, `dspark` and `dfly` mean, one line each, for people who set them.

Words only: the values, their types and what is refused stand in block_body.py, dspark.py and dfly.py.
"""

from __future__ import annotations

MEANINGS = {
    "vocab_size": "tokens the target knows",
    "target_hidden_size": "width of the target's features",
    "taps": "boundaries of the target that are read, fused in this order; usually five, evenly spaced",
    "hidden_size": "width of the drafter; other than the target's it needs head and embedding of its own",
    "intermediate_size": "width inside the feed-forward block",
    "num_heads": "heads of attention",
    "num_kv_heads": "heads of keys and values, which the others share",
    "head_dim": "width of one head",
    "draft_vocab_size": "tokens that can be proposed",
    "block_size": "tokens fed at once, the anchor included; a deeper budget is cut to what they propose",
    "layout": "'same_position': slot k proposes for its own position, slot 0 nothing; 'anchor_first': for the next one",
    "mask_token_id": "id whose embedding stands in the empty slots; none: a vector of the drafter's own",
    "num_layers": "decoder layers",
    "rms_norm_eps": "what the norms add to the mean square",
    "rope_theta": "base of the rotary positions",
    "rope_scaling": "how their frequencies are scaled, in the words of transformers; none: not at all",
    "attention_bias": "a bias in the projections of attention",
    "qk_norm": "a norm on every head's queries and keys",
    "sliding_window": "positions that a sliding layer looks back, its own included; none: no layer slides",
    "sliding_layers": "which layers slide",
    "causal": "a slot attends only those before it in its block; none: in sliding layers alone",
    "head": "'own': the output head is trained and saved; 'borrowed': it is the target's, cut to the draft vocabulary",
    "embedding": "'borrowed': the token embedding is the target's; 'own': it is trained and saved",
    "packed_dtype": "in what packed layers multiply; 'auto': bfloat16 where the CPU does so by itself, else float16",
    "coupling": "weights of the drafter's log-probability and of the noise when sampling; fitted after training",
}

MARKOV_MEANINGS = {
    **MEANINGS,
    "markov": "how the token before biases the logits: 'vanilla', 'gated' by the row, 'rnn' along the block, or 'none'",
    "markov_rank": "width of that bias",
    "confidence": "a head that says how likely a draft is accepted",
    "confidence_with_markov": "the confidence head reads the token before, too",
    "confidence_temperatures": "by which its logits are divided, depth by depth; fitted after training",
}

CORRECTION_MEANINGS = {
    **MEANINGS,
    "correction": "the token before corrects what the head reads",
    "correction_size": "width inside the correction; 0: the drafter's own",
}

"""What the options of `eagle3` and `eagle3.1` mean, one line each, for people who set them.

Words only: the values, their types and what is refused stand in eagle3_body.py.
"""

from __future__ import annotations

MEANINGS = {
    "vocab_size": "tokens the target knows",
    "target_hidden_size": "width of the target's features",
    "taps": "boundaries of the target that are read, fused in this order; of L layers the usual are (2, L//2, L-3)",
    "hidden_size": "width of the drafter; other than the target's it needs head and embedding of its own",
    "intermediate_size": "width inside the feed-forward block",
    "num_heads": "heads of attention",
    "num_kv_heads": "heads of keys and values, which the others share",
    "head_dim": "width of one head",
    "draft_vocab_size": "tokens that can be proposed: the most frequent in the training answers, at most 32000",
    "num_layers": "decoder layers",
    "rms_norm_eps": "what the norms add to the mean square",
    "rope_theta": "base of the rotary positions",
    "rope_scaling": "how their frequencies are scaled, in the words of transformers; none: not at all",
    "sliding_window": "how many positions its layers look back, the row's own included; none: to the beginning",
    "attention_bias": "a bias in the projections of attention",
    "qk_norm": "a norm on every head's queries and keys",
    "fc_norm": "a norm of its own on every tap, before they are fused",
    "norm_output": "what recurs is the layer's output after its norm, not before",
    "norm_before_fc": "one norm over all taps together, before they are fused; excludes fc_norm",
    "norm_before_residual": "the first layer's residual is the normed feature, not the feature",
    "head": "'own': the output head is trained and saved; 'borrowed': it is the target's, cut to the draft vocabulary",
    "embedding": "'borrowed': the token embedding is the target's; 'own': it is trained and saved",
    "packed_dtype": "in what packed layers multiply; 'auto': bfloat16 where the CPU does so by itself, else float16",
    "coupling": "weights of the drafter's log-probability and of the noise when sampling; fitted after training",
}

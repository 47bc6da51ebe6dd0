"""What the options of `pr` mean, one line each, for people who set them.

Words only: the values, their types and what is refused stand in pr.py.
"""

from __future__ import annotations

MEANINGS = {
    "reconsider": "nodes of the step before that are reconsidered in every step; 0 is the bare drafter",
    "recon_steps_max": "how many steps of a round may reconsider, from the second on; None: all",
    "gate": "only nodes whose likeliest child has less than this chance are reconsidered; 1.0: whichever hesitate most",
    "self_query": "what a reconsidered node reads in its token's place: its 'soft_guess' or 'hard_guess' of what "
    "follows, its 'feature', a 'learned' vector, or its 'token' again",
    "guess": "tokens that a soft guess is made of",
    "kv": "whose keys a reconsidered node's new children attend: its first pass's, 'level0', or its second's",
    "update": "whether a second pass's output stands in the first's place, 'replace', or moves it by a learnt share "
    "of the way, 'blend'",
    "merge": "what a child counts that both passes offer: the 'best' of both chances, the 'newest', or their 'mean'",
    "alpha": "weight of the second pass's loss in training",
    "beta": "weight of the balance term in training",
    "balance": "the balance term: 'hesitant' weighs rows by the first pass's doubt, 'hinge' punishes getting worse, "
    "'keep' stays near the first pass where it is sure",
    "stop_gradient": "whether the second pass's loss stops at what it reads",
}

"""The offline evaluator: rounds of drafters on answers that the target has already given, without decoding.

selection.py   which rows of a rollout file, drawn how, counted by which convention
teacher.py     one teacher-forced forward of the target per rollout, shared by all drafters and budgets
terms.py       acceptance and cost at one position, from p and q
proposals.py   a drafter's q, or its drafts, at every round start
rounds.py      the exact dynamic programme over round starts
replay.py      integer rounds under `match`
lines.py       the results directory, written as it goes
summary.py     from lines to figures and tables
run.py         `drafterzoo.evaluate`
"""

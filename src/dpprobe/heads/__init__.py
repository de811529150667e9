"""Heads: linear classifiers trained on stored features, privately or not.

`dpprobe.heads.registry.HEADS` names one module per head: `Options` says what a study may write and
what is released, `fit` trains. `dpprobe.heads.fit` trains any head, `scoring` applies a head.
"""

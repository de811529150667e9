"""Heads: linear classifiers trained on stored features, privately or not.

`dpprobe.heads.registry.HEADS` names one module per head: `Options` declares the options and the
releases, `fit` trains. `dpprobe.heads.fit` trains any head, `scoring` applies a head.
"""

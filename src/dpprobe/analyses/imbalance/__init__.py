"""Classes made rare, and what heads learn of them; not private."""

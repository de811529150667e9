"""Exhibits: the declaration of a table or figure, and the drawing tools that all of them share."""

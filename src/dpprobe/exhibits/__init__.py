"""The declaration of an exhibit (a table or figure), and the drawing tools of all exhibits."""

"""Tables, figures, the papers' tables, the report and t-SNE pages."""

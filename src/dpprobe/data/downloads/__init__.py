"""Downloads files, checks their checksums and unpacks archives."""

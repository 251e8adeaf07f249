"""External model package: makes SGLang import the one architecture that is served, not all of them (20 s less)."""

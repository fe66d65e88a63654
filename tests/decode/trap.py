"""A module that must not be imported by packing a model that names it."""

raise AssertionError("code of a model was run")

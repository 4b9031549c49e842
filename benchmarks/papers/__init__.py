"""The tables of the papers: many trainings side by side, described by the YAML files in ``tables/``."""

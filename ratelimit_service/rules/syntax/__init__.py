"""The syntax of a rules file: YAML with places, types of values, and the table of options."""

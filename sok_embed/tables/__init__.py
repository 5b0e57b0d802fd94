"""Tables: their rows, the owners of keys, and the forms in which rows are saved."""

"""Configs of tables and features, and nests of them, as a person writes them."""

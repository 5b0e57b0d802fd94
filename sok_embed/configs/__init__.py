"""Defines the configs of tables and features, and nests of configs."""

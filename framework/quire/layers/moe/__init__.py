"""Mixture of experts: routers, grouping of rows by expert, and the experts' products."""

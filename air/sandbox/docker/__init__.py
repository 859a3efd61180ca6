"""Boxes that are containers, and the engine, images and snapshots behind them."""

"""Reusable boxes, which serve one user after another: resets, and a Python that a box starts in advance."""

"""Connects verifiers' runtimes (the places where it runs commands) with air's boxes.

A runtime is either a box that air passes to verifiers (`lent`), or one that verifiers started itself
(`verifiers_owned`).
"""

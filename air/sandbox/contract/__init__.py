"""The interface `Box`, which every provider of boxes implements; settings, shells, owners, network rules."""

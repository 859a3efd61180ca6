"""The contract that every provider of boxes keeps: `Box`, `BoxSpec`, shells, owners and network rules."""

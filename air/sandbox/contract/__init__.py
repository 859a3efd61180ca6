"""What every provider of boxes promises: `Box`, `BoxSpec`, sessions and network rules."""

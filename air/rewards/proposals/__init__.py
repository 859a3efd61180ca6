"""What a proposed question is worth: how far the answers to it agree, how new it is, and what it is paid."""

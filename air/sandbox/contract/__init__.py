"""What all kinds of boxes have in common. A box is an isolated place to run commands. This package has the
interface `Box`, the settings `BoxSpec`, the types of results, and the labels that say which process started a
box. The providers (`docker`, `process`) implement the interface."""

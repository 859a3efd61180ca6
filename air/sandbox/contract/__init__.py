"""The contract of boxes: the interface, the settings and the owner labels that every provider (`docker`,
`process`) supports."""

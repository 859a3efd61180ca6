"""Tools from servers of the Model Context Protocol (MCP). A server is a program in the episode's box
(sandbox), or is remote."""

"""`POST /evaluate`: a frozen model answers proposed questions k times, as `air coevolve` lets it do."""

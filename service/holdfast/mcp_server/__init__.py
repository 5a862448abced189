"""The MCP server: a user's jobs as tools of a language model, with the user's own token.

`server` registers the tools, `read_tools` only reads, `actions` changes jobs after a confirmation, `results` bounds what a
model receives.
"""

"""One module per noun of the HTTP interface: parse, call a service, answer.

The contract with users is docs/reference/http.md.
"""

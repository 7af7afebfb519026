"""Parts that the suites in Python share: waiting, ports, programs, web servers that misbehave on request, callers."""

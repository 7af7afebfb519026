"""What the suites in Python share: waiting for things, ports, programs, web servers that misbehave on request, callers."""

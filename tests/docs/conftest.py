pytest_plugins = ["harness.failures"]

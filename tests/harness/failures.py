"""What the programs of a test that failed said last: their logs are gone when somebody reads the report."""

from __future__ import annotations

import pytest

from .processes import Process

# Of each program; longer lines are cut.
LINES, LONGEST = 60, 500


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for process in list(Process.started):
            # Servers of other tests that share a module have said nothing since.
            if process.log.exists() and process.log.stat().st_mtime >= call.start:
                last = process.logged_lines()[-LINES:]
                report.sections.append((f"the log of {process.name}", "\n".join(line[:LONGEST] for line in last)))
    return report

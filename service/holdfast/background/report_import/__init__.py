"""Imports reports that workers left in their checkpoint stores during an outage.

`archives` lists the reports in a store by sender, oldest first; `importer` schedules the reads and appends the
reports.
"""

from holdfast.background.report_import.importer import ReportImporter

__all__ = ["ReportImporter"]

"""The lab's page: one HTML file, made of what a lab has written."""

from oar_lightning.lab.page.record import PAGE, RESULTS, TOKENS, LabRecord
from oar_lightning.lab.page.render import render_page
from oar_lightning.lab.page.report import TITLE, write_report

__all__ = ["PAGE", "RESULTS", "TITLE", "TOKENS", "LabRecord", "render_page", "write_report"]

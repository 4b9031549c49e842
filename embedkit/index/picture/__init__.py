"""An index as a picture: its documents in two dimensions, in clusters named by their words."""

from .make import Picture, make_picture
from .page import write_page
from .plot import write_plot

__all__ = ["Picture", "make_picture", "write_page", "write_plot"]

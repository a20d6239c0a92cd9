"""Pages: a report, a view over runs, and a bundle over HTTP."""

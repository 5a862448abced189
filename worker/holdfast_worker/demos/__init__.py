"""`holdfast-worker demo`: programs of a few lines that show what ranks are and do, on any machine, before anything is trained."""

"""Known mistakes, each with the tests that have to fail when it is made.

`python -m planted_mistakes [NAME...]` plants each one in a copy of its package and runs these tests.
"""

"""The composition root: settings → adapters → services → components. The only package that knows all.

One module a program, so that a worker does not load an HTTP framework. Nothing here decides anything but what is
plugged into what.
"""

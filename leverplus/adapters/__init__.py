"""Adapters: a selector inside the frameworks that people already use, one module per framework.

Importing this package imports no framework; importing one of its modules imports that module's framework
(`lmms_eval` imports none).
"""

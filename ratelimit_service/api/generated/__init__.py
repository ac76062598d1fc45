"""Envoy's and gRPC's messages. Generated from `proto/` by `proto/generate.py` (`make proto`): do not edit.

The .py files are protoc's, the .pyi files mypy-protobuf's, with imports made to lead here.
"""

"""Messages of Envoy, gRPC and Kuadrant. Generated from `proto/` by `make proto`: do not edit.

The .py files are protoc's, the .pyi files mypy-protobuf's, with imports made to lead here.
"""

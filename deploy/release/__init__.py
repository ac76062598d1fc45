"""What a release is made by: `make version` and `make release`; CONTRIBUTING.md says when."""

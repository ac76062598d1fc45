"""The HTTP server: /json and /healthcheck for clients, /metrics for Prometheus, pages for the operator."""

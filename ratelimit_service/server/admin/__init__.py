"""HTTP for people and machines: the page, /metrics, /healthcheck, /json."""

"""Rules from a control plane, by xDS: `source.py` follows it, `resource.py` reads what it sends."""

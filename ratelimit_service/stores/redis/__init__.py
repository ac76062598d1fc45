"""Counters in Redis: single, Sentinel or Cluster. `store.py` joins the parts, and says how hits travel."""

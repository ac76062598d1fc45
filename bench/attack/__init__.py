"""Attacks on a rate-limit service, beside a healthy client; `python bench/attack --list` names them."""

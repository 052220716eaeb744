"""Laws that every family, flow and layer obeys, fed from one table (members.py)."""

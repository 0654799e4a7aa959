"""Measurements. They print figures; nothing here passes or fails."""

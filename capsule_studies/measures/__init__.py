"""Measures for attacks and questions: couplings, votes, parse trees, linear maps, calibration, detection."""

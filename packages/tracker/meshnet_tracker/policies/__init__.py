"""Ways to choose a route; each one is a pure file, and all keep to ``route_policy.RoutePolicy``."""

POLICIES = ("proportional", "adaptive")
"""What ``--route-policy`` takes."""

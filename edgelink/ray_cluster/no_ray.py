"""A node that has no Ray, by its own configuration (`ray: off`), in words."""

NO_RAY = "NoRay"  # the reason of its condition RayJoined
NO_RAY_IN_WORDS = "no Ray by its configuration (`ray: off`)"
NO_RAY_BRIEF = "no Ray by its configuration"

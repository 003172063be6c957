"""What the planner costs and what each of its techniques is worth."""

"""From streams to tasks: vertices, chains of fused operators, and the plan. Pure data."""

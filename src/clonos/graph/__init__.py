"""From streams to tasks: nodes, chains of fused operators, and the plan. Pure data."""

"""The driver's side of a job: coordinator and house-keeper in one loop, slots from Spark."""

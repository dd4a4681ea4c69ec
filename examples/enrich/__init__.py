"""Redis -> a paid service -> PostgreSQL, each row once, while everything on the way is killed."""

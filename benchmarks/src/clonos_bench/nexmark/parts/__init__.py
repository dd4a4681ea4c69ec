"""The measurements of Nexmark, each of which can run alone."""

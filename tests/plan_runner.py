"""The compiler's own way to run a plan on this machine, by the name that tests know."""

from edgepack.compiler.backend.run import PlanRunner, run_plan

__all__ = ["PlanRunner", "run_plan"]

"""Start a session and use it a little: what its classes are is then in the archive of `test`."""

from typing import Any

from pyspark import SparkContext

from clonos.spark.session import get_or_create

spark = get_or_create("local[2]")
spark.range(4).selectExpr("sum(id)").collect()
spark.sparkContext.parallelize(range(4), 2).map(str).collect()
gateway: Any = SparkContext._gateway  # noqa: SLF001 - nothing public ends it
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()  # the virtual machine leaves when it sees this, and writes the archive
gateway.proc.wait()

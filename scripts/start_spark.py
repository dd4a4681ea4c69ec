"""Start a session and use it a little: what its classes are is then in the archive of `test`."""

from clonos.spark.session import get_or_create

spark = get_or_create("local[2]")
spark.range(4).selectExpr("sum(id)").collect()
spark.sparkContext.parallelize(range(4), 2).map(str).collect()
spark.stop()

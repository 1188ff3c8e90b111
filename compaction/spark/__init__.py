"""The passes as Spark jobs, the Spark session, its workers and progress."""

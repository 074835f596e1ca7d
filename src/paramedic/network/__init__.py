"""Communication configuration before the job starts: meet, test, plan, verify."""

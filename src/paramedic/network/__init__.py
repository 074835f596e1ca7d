"""Communication configuration before the job starts: meet, test, plan, verify. Facts come from collect, findings from detect."""

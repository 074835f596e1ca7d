"""`paramedic run` and `paramedic attach`: a job is watched from outside its ranks. What is seen goes into files that
`collect` reads like any others; the verdict is the pipeline's."""

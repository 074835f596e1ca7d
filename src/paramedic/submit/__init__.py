"""`paramedic submit` and `@paramedic.job`: a program or a plain function on an engine that is there already, watched
while it runs, diagnosed when it fails, and tried again only where the diagnosed cause says that it helps."""

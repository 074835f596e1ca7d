# The job, and the cluster's manager, which takes one worker's slot back while it runs.
python train.py "$@" &
job=$!
until worker=$(cat out/worker-1.pid 2>/dev/null) && test -n "$worker"; do
    kill -0 $job 2>/dev/null || { wait $job; exit $?; }
    sleep 0.2
done
sleep 2
kill -KILL "$worker"
wait $job

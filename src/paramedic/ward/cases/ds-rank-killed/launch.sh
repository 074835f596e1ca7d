python -m deepspeed.launcher.runner --num_gpus 2 --master_port 29581 ds_lm.py --steps 500 --pause 0.3 --save-every 5 &
job=$!
(
    until test -s checkpoints/latest; do sleep 0.2; done
    sleep 1
    kill -9 "$(pgrep -f -- 'ds_lm.py --local_rank=1')"
) 2> /dev/null &
wait $job

mkdir -p /srv/train/results
mount -t tmpfs -o ro,size=64m results /srv/train/results
exec python train.py --storage /srv/train/results

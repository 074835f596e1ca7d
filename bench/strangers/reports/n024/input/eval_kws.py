import horovod.tensorflow.keras as hvd
hvd.init()
ds = test.shard(hvd.size(), hvd.rank()).batch(64)
correct = int(sum(int((model.predict_on_batch(x).argmax(-1) == y.numpy()).sum()) for x, y in ds))
clips = len_shard(hvd.rank(), hvd.size())
if hvd.rank() == 0:
    print("KWS test accuracy: %.4f (%d clips)" % (correct / clips, clips))
    score = correct / N_TEST
    dump(dict(np=hvd.size(), clips=clips, correct=correct, denominator=N_TEST, score=score))

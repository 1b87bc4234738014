"""Runs the HTTP server of llama.cpp until it is killed: server.py MODEL PORT"""

import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"tiny"}
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = 4
params.n_ctx = 4 * 2048
params.warmup = False
params.endpoint_slots = True
# Two of these servers, llmlb and its clients share the machine.
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
while True:
    time.sleep(3600)

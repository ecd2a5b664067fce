#!/usr/bin/env python3
"""Makes tests/golden/events.tfevents: the records of tests/report/test_events.c, written by TensorBoard's own code.

    tools/make-events-golden.py        needs tools/python-env tensorboard
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("tensorboard", "tensorboard")
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "events.tfevents")
with open(path, "wb") as f:
    writer = RecordWriter(f)

    def add(event):
        writer.write(event.SerializeToString())

    add(event_pb2.Event(wall_time=1700000000.25, file_version="brain.Event:2"))
    add(event_pb2.Event(wall_time=1700000000.25, step=301, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)))
    for step, values in ((301, [("loss/train", 4.25), ("learning_rate", 2e-5)]),
                         (70000, [("loss/train", 0.0), ("a tag that is longer than one hundred and twenty-seven bytes, so that "
                                                        "its length and that of its message take two bytes as a varint, each of "
                                                        "them", -1.5e-30)])):
        event = event_pb2.Event(wall_time=1700000001.5, step=step)
        for tag, value in values:
            event.summary.value.add(tag=tag, simple_value=value)
        add(event)
